"""The table: which programs, which faults, and what must come out of each pair."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Must:
    """What must come out of a cell, besides the result of the undisturbed run.

    Attributes:
        exits: exit codes of the launcher, start by start; the last one has finished the work.
        restarts: at least so many, and at most so many.
        blamed: the rank that the first verdict names; None where none is named.
        lost: steps that are done again, in units of the steps from save to save.
    """

    exits: tuple[int, ...] = (0,)
    restarts: tuple[int, int] = (1, 1)
    blamed: int | None = 1
    lost: int = 1


@dataclass(frozen=True)
class Fault:
    """One column. The fault comes in a step that is `in_save` or half way between two saves.

    Attributes:
        text: for the page.
        plan: of ``--inject-fault``, up to the iteration. ``call`` has the runner make the fault.
        hangs: limits for silent ranks are set.
        in_save: it comes in the step that a save follows.
        in_evaluation: it comes in the first evaluation after a save.
    """

    text: str
    must: Must
    plan: str = ""
    hangs: bool = False
    in_save: bool = False
    in_evaluation: bool = False

    @property
    def by_script(self) -> bool:
        """Whether `programs/disturbed.py` makes it, or says when it is to be made."""
        return self.in_evaluation or (self.hangs and not self.plan)


_HANG = Must()
FAULTS = {
    "none": Fault("nothing happens", Must(restarts=(0, 0), blamed=None, lost=0)),
    "kill": Fault("rank 1 is killed in a step", Must(), "sigkill:rank=1"),
    "exception": Fault("rank 1 raises an exception in a step", Must(), "exception:rank=1"),
    "sigstop": Fault("rank 1 is stopped by SIGSTOP", _HANG, "sigstop:rank=1", hangs=True),
    "loop": Fault("rank 1 loops for ever in its optimizer", _HANG, hangs=True),
    "wrong-collective": Fault(
        "rank 1 calls a collective that no other rank calls", _HANG, hangs=True
    ),
    "kill-in-save": Fault(
        "rank 0 is killed as the first file of a checkpoint appears",
        Must(blamed=0, lost=2),
        "call:rank=0",
        in_save=True,
    ),
    "sigterm": Fault(
        "the launcher gets SIGTERM; the job is started again",
        Must(exits=(75, 0), restarts=(0, 0), blamed=None, lost=0),
        "call:rank=1",
    ),
    "sigterm-all": Fault(
        "every process of the job gets SIGTERM, as from Slurm; the job is started again",
        Must(exits=(75, 0), restarts=(0, 0), blamed=None, lost=0),
        "call:rank=1",
    ),
    "sigterm-eval": Fault(
        "the launcher gets SIGTERM in an evaluation; the job is started again",
        Must(exits=(75, 0), restarts=(0, 0), blamed=None, lost=0),
        in_evaluation=True,
    ),
    "other-world": Fault(
        "the launcher gets SIGTERM; the job is started again with one rank more",
        Must(exits=(75, 0), restarts=(0, 0), blamed=None, lost=0),
        "call:rank=1",
    ),
    "disk-full": Fault(
        "the disk of the checkpoints is full until a save fails",
        Must(restarts=(0, 4), blamed=None, lost=2),
        "call:rank=0",
        in_save=True,
    ),
    "bad-checkpoint": Fault(
        "NaN is saved in place of a weight, and who saves is killed at the save after that",
        Must(restarts=(2, 2), blamed=None, lost=2),
        "bad-save:rank=all",
    ),
    "node-lost": Fault(
        "of two nodes and a spare, one is killed whole",
        Must(restarts=(1, 1), blamed=None, lost=2),
        "call:rank=1,round=0",  # the spare does not know that it has happened
    ),
    "launcher-killed": Fault(
        "the launcher is killed by SIGKILL; the job is started again",
        Must(exits=(-9, 0), restarts=(0, 0), blamed=None, lost=1),
        "call:rank=1",
    ),
    "output-gone": Fault(
        "the reader of the launcher's output (`--tee 3`) goes away",
        Must(restarts=(0, 0), blamed=None, lost=0),
        "call:rank=1",
    ),
}


@dataclass(frozen=True)
class Job:
    """One row.

    Attributes:
        program: its name in the folder `programs`.
        text: for the page.
        steps: of the optimizer.
        save_every: so many of them.
        faults: the cells there are, by their names.
        why: the other faults are not tried.
        must: of faults for which something else must come out.
        options: of the launcher.
        arguments: of the program.
        limit_s: of the silence of a rank, where a fault is a hang.
        deadline_s: of a cell.
        work: names in the working folder that the program makes.
        checkpoints: the folder it saves in.
        disk_mb: size of the disk that becomes full.
        logs: a pattern of files of wandb, which have every step in the end.
    """

    program: str
    text: str
    steps: int
    save_every: int
    faults: tuple[str, ...]
    why: str = ""
    must: dict[str, Must] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    limit_s: int = 25
    deadline_s: int = 240
    work: tuple[str, ...] = ("checkpoints",)
    checkpoints: str = "checkpoints"
    disk_mb: int = 400
    logs: str = ""

    def must_of(self, fault: str) -> Must:
        """Return what must come out of this cell."""
        return self.must.get(fault, FAULTS[fault].must)

    def iteration_of(self, fault: str) -> int:
        """Return the step in which the fault comes, from 0; the second save is made by then."""
        between = 0 if FAULTS[fault].in_save else (self.save_every + 1) // 2
        return 2 * self.save_every - 1 + between


# Faults that a program of the given kind can meet at all, and that cost little.
_CRASHES = ("none", "kill", "kill-in-save")
JOBS = {
    "ddp": Job(
        "ddp_gpt",
        "GPT of 7 M parameters, DDP, bf16, accumulation, EMA, evaluation; Session, Checkpointer",
        steps=24,
        save_every=6,
        faults=tuple(name for name in FAULTS if name != "other-world"),
        why="Its steps depend on how many ranks there are.",
    ),
    "loader": Job(
        "loader_vit",
        "ViT of 3 M parameters, DDP, accumulation; a Loader of two data sets, torchvision's "
        "augmentation in its workers; Session, Checkpointer",
        steps=20,
        save_every=5,
        faults=(*_CRASHES, "sigstop", "sigterm", "sigterm-all", "other-world", "launcher-killed"),
        why="A Session and a Checkpointer are tried with all faults in ddp.",
    ),
    "continuous": Job(
        "loader_vit",
        "The same, saved as often as the disk and the cost allow",
        steps=40,
        save_every=12,  # at the least: a save costs less than 2.5 % of twelve steps
        faults=(*_CRASHES, "sigterm"),
        arguments=("continuous",),
        why="The other faults are those of the row above.",
    ),
    "trainer": Job(
        "hf_trainer",
        "GPT-2 of 7 M parameters with the Trainer of Transformers: bf16, accumulation, evaluation",
        steps=24,
        save_every=6,
        faults=(
            *_CRASHES,
            "exception",
            "loop",
            "sigterm",
            "sigterm-all",
            "sigterm-eval",
            "disk-full",
            "bad-checkpoint",
            "output-gone",
        ),
        work=("out",),
        checkpoints="out",
        why="SIGSTOP and a lost node are the same to it as a loop and a kill.",
    ),
    "lightning": Job(
        "lightning_resnet",
        "ResNet-18 with Lightning: a Loader, augmentation in its workers, bf16, EMA, validation",
        steps=24,
        save_every=6,
        faults=(*_CRASHES, "sigterm", "sigterm-all", "sigterm-eval", "disk-full"),
        disk_mb=800,  # for four checkpoints of 135 MB, which are all kept
        why="Its hangs are those of any program with a Session.",
    ),
    "trl": Job(
        "trl_lora",
        "Llama of 7 M parameters, LoRA adapters, SFTTrainer of TRL",
        steps=16,
        save_every=4,
        faults=("none", "kill", "sigterm"),
        work=("out",),
        checkpoints="out",
        why="Its trainer is that of Transformers, which has the other faults.",
    ),
    "accelerate": Job(
        "accelerate_vit",
        "ViT of 5 M parameters with Accelerate: bf16, accumulation, a Loader; Session",
        steps=16,
        save_every=4,
        faults=("none", "kill", "sigstop", "sigterm-all", "disk-full"),
        work=("states",),
        checkpoints="states",
        why="A Session is tried with all faults in ddp.",
    ),
    "fsdp": Job(
        "fsdp2_llama",
        "Llama of 14 M parameters, FSDP2, bf16; Session, Checkpointer of shards",
        steps=20,
        save_every=5,
        faults=(*_CRASHES, "sigterm", "node-lost", "launcher-killed"),
        why="Other hangs and signals are tried with ddp: they do not meet its shards.",
    ),
    "timm": Job(
        "timm_lamb",
        "ConvNeXt of timm, its LAMB, schedule and EMA, bf16; Checkpointer",
        steps=20,
        save_every=5,
        faults=(*_CRASHES, "exception"),
        why="It has no Session: it ends by a signal, as without undaunted.",
    ),
    "diffusers": Job(
        "diffusers_unet",
        "UNet of Diffusers of 7 M parameters, EMA, bf16; restarted inside the process",
        steps=20,
        save_every=5,
        faults=("none", "exception", "loop", "kill"),
        must={
            "exception": Must(restarts=(0, 0), blamed=None),
            "loop": Must(restarts=(0, 0), blamed=None),
        },
        limit_s=90,
        why="It stops by no signal. After a kill all processes are started again.",
    ),
    "torchtitan": Job(
        "torchtitan_llama",
        "Llama of 6 M parameters with torchtitan: FSDP, its data loader and checkpoints",
        steps=20,
        save_every=5,
        faults=(*_CRASHES, "sigterm"),
        arguments=("--module", "torchtitan_llama", "--config", "small"),
        work=("assets", "data", "outputs"),
        checkpoints="outputs/checkpoint",
        why="Each start imports for long: only what its own checkpoints meet.",
    ),
    "deepspeed": Job(
        "deepspeed_zero1",
        "BERT of 7 M parameters with DeepSpeed: ZeRO-1, bf16, accumulation; Session",
        steps=16,
        save_every=4,
        faults=(*_CRASHES, "sigterm"),
        why="Each start imports for long: only what its own checkpoints meet.",
    ),
    "ignite": Job(
        "ignite_cnn",
        "MobileNet with Ignite: its engine, EMA, evaluator and Checkpoint, at the end of an epoch",
        steps=24,
        save_every=6,
        faults=("none", "kill", "wrong-collective"),
        why="It stops by no signal.",
    ),
    "hydra": Job(
        "hydra_wandb",
        "gMLP of timm, configured by Hydra, logged by wandb (offline), webdataset, bf16; Session",
        steps=16,
        save_every=4,
        faults=("none", "kill", "exception", "sigterm"),
        work=("checkpoints", "data", "wandb"),
        logs="wandb/offline-run-*/*.wandb",
        why="It saves by torch.save, as compiled does: only what its logger and loader meet.",
    ),
    "compiled": Job(
        "compiled_own_handlers",
        "torch.compile and DDP; torch.save and the program's own handler of SIGTERM",
        steps=40,
        save_every=10,
        faults=(*_CRASHES, "sigterm"),
        deadline_s=400,
        why="While it compiles it is silent for longer than a hang may take here.",
    ),
    "nvrx": Job(
        "nvrx_bert",
        "BERT of 7 M parameters with the names of NVRx: local and asynchronous checkpoints, bf16",
        steps=20,
        save_every=5,
        faults=(*_CRASHES, "exception"),
        work=("checkpoints", "global"),
        why="It stops by no signal, as scripts of NVRx do.",
    ),
}

SAMPLE = (
    ("ddp", "none"),
    ("ddp", "kill"),
    ("trainer", "none"),
    ("trainer", "kill"),
    ("fsdp", "none"),
    ("fsdp", "kill"),
)
