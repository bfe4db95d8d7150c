//! Statistics of a primitive that was built to count: snapshots, and durations as histograms.
//!
//! Nothing is counted unless a primitive was built to, and one that was not does not pay for it.

mod durations;

pub use durations::Durations;
