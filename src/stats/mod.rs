//! What a primitive has done so far, for whoever asked it to count: snapshots, and how long it took, as histograms.
//!
//! Nothing is counted unless a primitive was built to, and one that was not does not pay for it.

mod durations;

pub use crate::semaphore::SemaphoreStats;
pub use durations::Durations;
