//! The progress of a fan-out.

/// The progress of a fan-out: the argument of its [`FanOut::progress`](super::FanOut::progress) hook.
///
/// ```
/// # use futures::StreamExt;
/// # use std::sync::{Arc, Mutex};
/// # use tollgate::fan_out::fan_out;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let seen = Arc::new(Mutex::new(None));
/// let last = Arc::clone(&seen);
/// let results = fan_out(0..3, 2).progress(move |progress| *last.lock().unwrap() = Some(progress)).map(|n| async move { n });
/// assert_eq!(results.count().await, 3);
/// assert_eq!(seen.lock().unwrap().as_ref().map(|progress| progress.finished), Some(3));
/// # }
/// ```
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
