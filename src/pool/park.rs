//! Waiting on a thread: a parked thread is a [`Waker`] like any other waiter.

use imp::Parked;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

crate::sync::shim::thread_local! {
    /// This thread's own: each wait on it leaves wakers that are known to be the same.
    static PARKER: Arc<Parker> = Arc::new(Parker(Parked::current()));
}

/// By which a thread is unparked.
pub(super) struct Parker(Parked);

impl Parker {
    pub(super) fn current() -> Arc<Self> {
        PARKER
            .try_with(Arc::clone)
            .unwrap_or_else(|_| Arc::new(Self(Parked::current())))
    }

    pub(super) fn unpark(&self) {
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
pub(super) fn park(patience: Option<Duration>) {
    Parker::current().0.park(patience);
}

/// Polls until it is ready, parking this thread in between; `None` once `patience` is over. A call within `poll` may be woken in place of
/// the outer one: so each leaves the thread unparked, which looks once more then.
pub(super) fn block_on<T>(patience: Option<Duration>, poll: impl FnMut(&Waker) -> Poll<T>) -> Option<T> {
    let parker = Parker::current();
    let result = block_on_by(&Waker::from(Arc::clone(&parker)), patience, poll);
    parker.0.leave_token();
    result
}

fn block_on_by<T>(waker: &Waker, patience: Option<Duration>, mut poll: impl FnMut(&Waker) -> Poll<T>) -> Option<T> {
    // A patience beyond what the machine's clock can name is no bound.
    let end = patience.and_then(|patience| Instant::now().checked_add(patience));
    loop {
        if let Poll::Ready(value) = poll(waker) {
            return Some(value);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return None;
        }
        park(left);
    }
}

/// Runs a future on this thread, parking it in between.
#[cfg(feature = "tokio")]
pub(super) fn run_blocking<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        let poll = |waker: &Waker| future.as_mut().poll(&mut std::task::Context::from_waker(waker));
        if let Some(output) = block_on(None, poll) {
            return output;
        }
    }
}

#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
mod imp {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, Thread};
    use std::time::Duration;

    /// With a token of its own: that of the thread may be used up by a user's code, which runs between a poll and the parking after it.
    pub(super) struct Parked {
        thread: Thread,
        token: AtomicBool,
    }

    impl Parked {
        pub(super) fn current() -> Self {
            Self {
                thread: thread::current(),
                token: AtomicBool::new(false),
            }
        }

        pub(super) fn unpark(&self) {
            self.leave_token();
            self.thread.unpark();
        }

        /// Called by the thread itself, or before it is unparked.
        pub(super) fn leave_token(&self) {
            // Release: what was done before is seen by the thread. Pairs with the swap in `park`.
            self.token.store(true, Ordering::Release);
        }

        /// Called by the thread itself.
        pub(super) fn park(&self, patience: Option<Duration>) {
            // Acquire: pairs with the store in `leave_token`. One that comes after this unparks the thread.
            if self.token.swap(false, Ordering::Acquire) {
                return;
            }
            match patience {
                None => thread::park(),
                Some(patience) => thread::park_timeout(patience),
            }
            // The return answers what has left it. Acquire: as above.
            self.token.swap(false, Ordering::Acquire);
        }
    }
}

/// A lock and a condition: the models' own parking loses a token when the thread waits for a lock meanwhile.
#[cfg(any(tollgate_loom, tollgate_shuttle))]
mod imp {
    #[cfg(tollgate_loom)]
    use loom::sync::{Condvar, Mutex};
    #[cfg(tollgate_shuttle)]
    use shuttle::sync::{Condvar, Mutex};
    use std::time::Duration;

    pub(super) struct Parked {
        token: Mutex<bool>,
        given: Condvar,
    }

    impl Parked {
        pub(super) fn current() -> Self {
            Self {
                token: Mutex::new(false),
                given: Condvar::new(),
            }
        }

        pub(super) fn unpark(&self) {
            self.leave_token();
            self.given.notify_one();
        }

        pub(super) fn leave_token(&self) {
            *self.token.lock().unwrap() = true;
        }

        /// Models have no time: a bounded wait is one without bounds.
        pub(super) fn park(&self, _: Option<Duration>) {
            let mut token = self.token.lock().unwrap();
            while !*token {
                token = self.given.wait(token).unwrap();
            }
            *token = false;
        }
    }
}
