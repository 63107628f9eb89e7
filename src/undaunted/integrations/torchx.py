"""Component of TorchX: `ft_ddp` is TorchX's ``dist.ddp`` with `undaunted run` as the launcher.

    app = ft_ddp("--lr", "0.1", script="train.py", j="2x8", max_restarts=10)
    torchx.runner.get_runner().run(app, scheduler="kubernetes", cfg={"queue": "default"})

On the command line TorchX takes a component by its file: docs/torchx.md.
"""

# TorchX reads the types of a component, and knows only these.
from typing import TYPE_CHECKING, Dict, List, Optional  # noqa: UP035

if TYPE_CHECKING:
    from torchx.specs import AppDef


def ft_ddp(  # noqa: PLR0913
    *script_args: str,
    script: Optional[str] = None,  # noqa: UP045
    m: Optional[str] = None,  # noqa: UP045
    image: Optional[str] = None,  # noqa: UP045
    name: str = "/",
    h: Optional[str] = None,  # noqa: UP045
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803
    j: str = "1x2",
    env: Optional[Dict[str, str]] = None,  # noqa: UP006, UP045
    max_retries: int = 0,
    rdzv_port: int = 29500,
    mounts: Optional[List[str]] = None,  # noqa: UP006, UP045
    debug: bool = False,
    tee: int = 3,
    max_restarts: int = 3,
) -> "AppDef":
    """Distributed training whose ranks are restarted by undaunted when one crashes or hangs.

    Args:
        script_args: arguments of the script or module
        script: the script to run within the image
        m: the module to run, as in python -m
        image: such as one of docker; TorchX's own if not given
        name: of the job: EXPERIMENT/RUN, EXPERIMENT/ or /RUN
        h: a named resource, instead of cpu, gpu and memMB
        cpu: CPUs per node
        gpu: GPUs per node
        memMB: memory per node in MB
        j: [MIN:]NODESxRANKS, the ranks per node; with MIN, the other nodes are spares
        env: variables: A=1,B=2; undaunted has one for each of its options, such as PET_ADVICE=act
        max_retries: how often the scheduler may start the whole job again
        rdzv_port: where the coordinator of several nodes listens, on the first one
        mounts: for the container: type=bind,src=/host,dst=/job[,readonly],...
        debug: set variables with which torch says more
        tee: what goes to files and the console: 0 nothing, 1 stdout, 2 stderr, 3 both
        max_restarts: how often undaunted may restart the ranks

    Raises:
        ImportError: TorchX is not installed.
    """
    try:
        from torchx import IMAGE
        from torchx.components import dist
    except ImportError as error:
        raise ImportError("ft_ddp needs TorchX: pip install undaunted[torchx]") from error
    app = dist.ddp(
        *script_args,
        script=script,
        m=m,
        image=image or IMAGE,
        name=name,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        j=j,
        env=env,
        max_retries=max_retries,
        rdzv_port=rdzv_port,
        mounts=mounts,
        debug=debug,
        tee=tee,
    )
    # Its only role runs `bash -c "torchrun OPTIONS"`, and ours are called the same.
    arguments = app.roles[0].args
    torchrun, _, rest = arguments[-1].partition(" ")
    if torchrun != "torchrun":
        raise RuntimeError(f"this version of TorchX starts {torchrun!r}, not torchrun")
    arguments[-1] = f"undaunted run --max-restarts {max_restarts} {rest}"
    return app
