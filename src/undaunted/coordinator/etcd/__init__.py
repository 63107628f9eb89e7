"""Leadership and the ledger in etcd: one lease per job, held by the launcher that leads."""
