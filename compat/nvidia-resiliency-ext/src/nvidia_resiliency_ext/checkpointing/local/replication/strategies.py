"""Who keeps copies of whose shards."""

from __future__ import annotations

from undaunted.checkpointing.local.replication.strategies import (
    CliqueReplicationStrategy as CliqueReplicationStrategy,
)
from undaunted.checkpointing.local.replication.strategies import (
    LazyCliqueReplicationStrategy as LazyCliqueReplicationStrategy,
)
from undaunted.checkpointing.local.replication.strategies import (
    LazyReplicationStrategyBuilder as LazyReplicationStrategyBuilder,
)
from undaunted.checkpointing.local.replication.strategies import (
    NoReplicasAvailableError as NoReplicasAvailableError,
)
from undaunted.checkpointing.local.replication.strategies import (
    ReplicationStrategy as ReplicationStrategy,
)
