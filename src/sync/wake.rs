//! Wake-ups: they do not nest, and the panic of a waker ends here.

use super::unwind::quietly;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::Waker;

crate::sync::shim::thread_local! {
    /// The wake-ups that the wake-up which is under way on this thread has caused, in order.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static CAUSED: RefCell<Option<VecDeque<Waker>>> = RefCell::new(None);
}

/// Wakes `waker`, after the wake-up that is under way on this thread: wake-ups do not nest, so that a chain of policies that wake one
/// another needs no stack. The panic of a waker ends here: only its own wake-up is lost.
pub(crate) fn wake(waker: Waker) {
    let mut waker = Some(waker);
    // A thread that is ending has no list any more.
    let _ = CAUSED.try_with(|caused| {
        if let Some(caused) = &mut *caused.borrow_mut() {
            caused.extend(waker.take());
        }
    });
    if let Some(waker) = waker {
        before_wakes(|| quietly(|| waker.wake()));
    }
}

/// Makes `step`, and then the wake-ups that it has caused: they find what it leaves.
pub(crate) fn before_wakes<R>(step: impl FnOnce() -> R) -> R {
    let mut deferred = Deferred::new();
    deferred.begin();
    step()
}

/// Once this has begun, wake-ups of this thread wait until it is dropped: several legs give back as one change, and no waiter is judged by
/// half of it.
pub(crate) struct Deferred {
    began: bool,
}

impl Deferred {
    /// Costs nothing unless it begins.
    pub(crate) const fn new() -> Self {
        Self { began: false }
    }

    /// From now on wake-ups wait.
    #[cold]
    pub(crate) fn begin(&mut self) {
        let begin = |caused: &RefCell<Option<VecDeque<Waker>>>| {
            let mut caused = caused.borrow_mut();
            let is_first = caused.is_none();
            caused.get_or_insert_default();
            is_first
        };
        self.began |= CAUSED.try_with(begin).unwrap_or(false);
    }
}

impl Drop for Deferred {
    #[inline] // row: policy try_admit
    fn drop(&mut self) {
        if self.began {
            run_caused();
        }
    }
}

/// Makes the wake-ups that were caused, and those that they cause.
#[cold]
fn run_caused() {
    let next = || CAUSED.with(|caused| caused.borrow_mut().as_mut().and_then(VecDeque::pop_front));
    while let Some(waker) = next() {
        quietly(|| waker.wake());
    }
    CAUSED.with(|caused| *caused.borrow_mut() = None);
}

/// Wakes all, whichever of them panic.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(wake);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, resume_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    struct Panics(&'static str);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            resume_unwind(Box::new(self.0));
        }
    }

    fn panics(with: &'static str) -> Waker {
        Waker::from(Arc::new(Panics(with)))
    }

    /// A payload whose drop panics with another such payload, `0` times over.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                resume_unwind(Box::new(Bomb(self.0 - 1)));
            }
        }
    }

    #[test]
    fn all_are_woken_whichever_of_them_panic() {
        struct Wakes(AtomicBool);
        impl Wake for Wakes {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let last = Arc::new(Wakes(AtomicBool::new(false)));
        wake_all([panics("one"), Waker::from(Arc::clone(&last)), panics("two")]);
        assert!(last.0.load(Ordering::Relaxed));
    }

    #[test]
    fn a_payload_whose_drop_panics_is_survived() {
        quietly(|| resume_unwind(Box::new(Bomb(2))));
    }

    /// A waker that panics in a drop during unwinding would abort the process.
    #[test]
    fn wakers_that_panic_during_unwinding_are_survived() {
        struct WakesOnDrop;
        impl Drop for WakesOnDrop {
            fn drop(&mut self) {
                wake(panics("one"));
                wake_all([panics("two"), panics("three")]);
            }
        }
        let unwound = catch_unwind(|| {
            let _wakes = WakesOnDrop;
            resume_unwind(Box::new("outer"));
        });
        assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&"outer"));
    }
}
