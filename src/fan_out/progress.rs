//! The progress of a fan-out.

/// The progress of a fan-out: the argument of its [`FanOut::progress`](super::FanOut::progress) hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The number of items that were taken from the source.
    pub taken: usize,
    /// The number of items whose futures have ended, panics included.
    pub finished: usize,
    /// The number of all items, if the source's size hint was exact at the start.
    pub total: Option<usize>,
}

pub(super) type Hook = dyn Fn(Progress) + Send + Sync;
