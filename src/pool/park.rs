//! Waiting on a thread: a parked thread is a [`Waker`] like any other waiter.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

#[cfg(tollgate_loom)]
use loom::thread::{self, Thread};
#[cfg(not(tollgate_loom))]
use std::thread::{self, Thread};

/// A handle by which a thread is unparked.
#[derive(Debug)]
pub(crate) struct Parker(Thread);

impl Parker {
    pub(crate) fn current() -> Arc<Self> {
        Arc::new(Self(thread::current()))
    }

    pub(crate) fn unpark(&self) {
        self.0.unpark();
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

/// Parks this thread until it is unparked, or for `patience` at most.
pub(crate) fn park(patience: Option<Duration>) {
    match patience {
        None => thread::park(),
        #[cfg(not(tollgate_loom))]
        Some(patience) => thread::park_timeout(patience),
        // Models have no time.
        #[cfg(tollgate_loom)]
        Some(_) => thread::park(),
    }
}

/// Polls until it is ready, parking this thread in between; `None` once `patience` is over.
pub(crate) fn block_on<T>(patience: Option<Duration>, mut poll: impl FnMut(&Waker) -> Poll<T>) -> Option<T> {
    let waker = Waker::from(Parker::current());
    // A patience beyond what the machine's clock can name is no bound.
    let end = patience.and_then(|patience| Instant::now().checked_add(patience));
    loop {
        if let Poll::Ready(value) = poll(&waker) {
            return Some(value);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        park(left);
    }
}
