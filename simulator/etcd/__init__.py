"""A stand-in for etcd and for gRPC: what `undaunted.coordinator.etcd` says to it is real."""
