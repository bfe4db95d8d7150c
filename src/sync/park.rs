//! Waits on a thread: a parked thread is a [`Waker`] like any other waiter.

use imp::Parker;
use std::cell::Cell;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

super::shim::thread_local! {
    /// A parker of this thread that no wait uses just now.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static PARKER: Cell<Option<Arc<Parker>>> = Cell::new(None);
}

/// Unparks the thread.
impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

/// Polls until ready, and parks this thread between polls.
pub(crate) fn block_on<T>(mut poll: impl FnMut(&Waker) -> Poll<T>) -> T {
    loop {
        if let Some(value) = block_on_timeout(None, &mut poll) {
            return value;
        }
    }
}

/// Polls until ready, and parks this thread between polls. Returns `None` after `patience`.
pub(crate) fn block_on_timeout<T>(patience: Option<Duration>, mut poll: impl FnMut(&Waker) -> Poll<T>) -> Option<T> {
    // A wait in the poll of another has a parker of its own: it uses up no wake-up of that one.
    let known = PARKER.try_with(Cell::take).ok().flatten();
    let parker = known.unwrap_or_else(|| Arc::new(Parker::of_this_thread()));
    let waker = Waker::from(Arc::clone(&parker));
    // A patience beyond the range of the machine's clock is no bound.
    let end = patience.and_then(|patience| Instant::now().checked_add(patience));
    let polled = loop {
        if let Poll::Ready(value) = poll(&waker) {
            break Some(value);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            break None;
        }
        parker.park(left);
    };
    let _ = PARKER.try_with(|known| known.set(Some(parker)));
    polled
}

/// Runs a future on this thread, and parks the thread between polls.
pub(crate) fn run_blocking<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    block_on(|waker| future.as_mut().poll(&mut std::task::Context::from_waker(waker)))
}

#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
mod imp {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{self, Thread};
    use std::time::Duration;

    /// A thread with a wake-up token of its own. User code between a poll and the next park may use up the thread's
    /// token.
    pub(crate) struct Parker {
        thread: Thread,
        token: AtomicBool,
    }

    impl Parker {
        pub(super) fn of_this_thread() -> Self {
            Self {
                thread: thread::current(),
                token: AtomicBool::new(false),
            }
        }

        pub(super) fn unpark(&self) {
            // Release: publishes the writes before the unpark to the thread. Pairs with the swap in `park`.
            self.token.store(true, Ordering::Release);
            self.thread.unpark();
        }

        /// Parks the thread until it is unparked, or for at most `patience`. Called by the thread itself.
        pub(super) fn park(&self, patience: Option<Duration>) {
            // Acquire: pairs with the store in `unpark`. A token that is left after this swap unparks the thread.
            if self.token.swap(false, Ordering::Acquire) {
                return;
            }
            match patience {
                None => thread::park(),
                Some(patience) => thread::park_timeout(patience),
            }
            // The return consumes the token that caused it. Acquire: as above.
            self.token.swap(false, Ordering::Acquire);
        }
    }
}

/// Parks with a lock and a condition variable: the models' own parking loses a token if the thread waits for a lock
/// meanwhile.
#[cfg(any(tollgate_loom, tollgate_shuttle))]
mod imp {
    #[cfg(tollgate_loom)]
    use loom::sync::{Condvar, Mutex};
    #[cfg(tollgate_shuttle)]
    use shuttle::sync::{Condvar, Mutex};
    use std::time::Duration;

    pub(crate) struct Parker {
        token: Mutex<bool>,
        given: Condvar,
    }

    impl Parker {
        pub(super) fn of_this_thread() -> Self {
            Self {
                token: Mutex::new(false),
                given: Condvar::new(),
            }
        }

        pub(super) fn unpark(&self) {
            *self.token.lock().unwrap() = true;
            self.given.notify_one();
        }

        /// Parks without a time bound, because models have no time.
        pub(super) fn park(&self, _: Option<Duration>) {
            let mut token = self.token.lock().unwrap();
            while !*token {
                token = self.given.wait(token).unwrap();
            }
            *token = false;
        }
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::thread;

    /// Waits until polled a third time, and runs `meanwhile` in the first poll, after a wake-up. Returns the number of polls.
    fn waits(meanwhile: impl Fn()) -> u32 {
        let mut polls = 0;
        let waited = block_on_timeout(Some(Duration::from_secs(10)), |waker| {
            polls += 1;
            match polls {
                1 => {
                    waker.wake_by_ref();
                    meanwhile();
                    Poll::Pending
                }
                2 => {
                    waker.wake_by_ref();
                    Poll::Pending
                }
                _ => Poll::Ready(polls),
            }
        });
        waited.expect("a wake-up is lost")
    }

    #[test]
    fn a_wake_up_is_kept_from_user_code_that_parks_the_thread() {
        assert_eq!(waits(thread::park), 3);
    }

    /// Given a wait in the poll of another, which uses up the wake-up of that one, when it ends or panics, then the outer one polls again.
    #[test]
    fn a_wait_in_the_poll_of_another_gives_its_wake_up_back() {
        // The thread's own token would hide a loss.
        let take_token = || thread::park_timeout(Duration::ZERO);
        let uses_up = || {
            waits(|| ());
            take_token();
        };
        assert_eq!(waits(uses_up), 3);
        let panics = || {
            let inner = || {
                let mut polls = 0;
                block_on(|_| {
                    polls += 1;
                    match polls {
                        1 => Poll::<()>::Pending,
                        _ => resume_unwind(Box::new("no more")),
                    }
                });
            };
            assert!(catch_unwind(AssertUnwindSafe(inner)).is_err());
            take_token();
        };
        assert_eq!(waits(panics), 3);
    }

    #[test]
    fn a_wait_without_patience_polls_once() {
        let mut polls = 0;
        let waited = block_on_timeout(Some(Duration::ZERO), |_| {
            polls += 1;
            Poll::<()>::Pending
        });
        assert_eq!((waited, polls), (None, 1));
        assert_eq!(block_on_timeout(Some(Duration::MAX), |_| Poll::Ready(7)), Some(7));
    }
}
