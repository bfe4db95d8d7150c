//! The numbers of a pool.

/// A snapshot of a pool. What workers have done is told when they next look for work: `finished` and those below it lag
/// by at most 16 tasks a worker, and are exact once the pool is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Threads that there are, those included that are being started.
    pub threads: usize,
    /// Threads that sleep.
    pub idle: usize,
    /// How many tasks may run at once.
    pub limit: usize,
    /// Tasks that wait.
    pub queued: usize,
    /// Tasks that wait or run.
    pub unfinished: usize,
    /// The most threads that there have been.
    pub peak_threads: usize,
    /// Tasks that were taken.
    pub submitted: u64,
    /// Tasks that have run, those included that panicked.
    pub finished: u64,
    /// Tasks that panicked.
    pub panicked: u64,
    /// Tasks that had not started at their deadline.
    pub expired: u64,
    /// Tasks that the policy in front of the workers has refused.
    pub refused: u64,
    /// Tasks that were thrown out by a full queue, or not let in, without a word to the submitter.
    pub discarded: u64,
    /// Threads that could not be started.
    pub failed_starts: u64,
}
