//! The statistics of a pool.

/// A snapshot of a pool. A worker reports its ended tasks when it next looks for work. So `finished` and the counts
/// below it lag by at most 16 tasks per worker, and are exact once the pool is idle.
///
/// ```
/// # use tollgate::WorkerPool;
/// let pool = WorkerPool::builder().workers(2).build()?;
/// pool.execute_all((0..5).map(|n| move || assert!(n != 3)));
/// pool.wait_idle();
/// let stats = pool.stats();
/// assert_eq!((stats.limit, stats.queued, stats.unfinished), (2, 0, 0));
/// assert_eq!((stats.submitted, stats.finished, stats.panicked), (5, 5, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Threads, including those that are starting.
    pub threads: usize,
    /// Threads that sleep.
    pub idle: usize,
    /// The most tasks that may run at once.
    pub limit: usize,
    /// Tasks that wait.
    pub queued: usize,
    /// Tasks that wait or run.
    pub unfinished: usize,
    /// The most threads at any one time.
    pub peak_threads: usize,
    /// Tasks that were accepted.
    pub submitted: u64,
    /// Tasks that have run, including those that panicked.
    pub finished: u64,
    /// Tasks that panicked.
    pub panicked: u64,
    /// Tasks that had not started at their deadline.
    pub expired: u64,
    /// Tasks that the policy in front of the workers has refused.
    pub refused: u64,
    /// Tasks that a full queue evicted or did not accept, without an error for the submitter.
    pub discarded: u64,
    /// Threads that could not be started.
    pub failed_starts: u64,
}
