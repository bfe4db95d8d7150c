//! How far a fan-out has come.

/// How far a fan-out has come: what [`FanOut::progress`](super::FanOut::progress) is called with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Items that were taken from the source.
    pub taken: usize,
    /// Items whose futures have ended, be it by a panic.
    pub finished: usize,
    /// How many there will be, where the source knew that at the start.
    pub total: Option<usize>,
}

pub(super) type Hook = dyn Fn(Progress) + Send + Sync;
