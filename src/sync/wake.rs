//! Calls of users' code that may panic: wakers, drops, limiters. The calls that follow are made all the same, and the first panic
//! is resumed; or it ends here, on a thread of the library.
//!
//! A panic is never resumed while the thread is panicking already: that would abort the process.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

/// Runs pieces of foreign code one after the other, and keeps the first of their panics until [`end`](Self::end).
#[derive(Default)]
pub(crate) struct PanicCollector(Option<Box<dyn Any + Send>>);

impl PanicCollector {
    /// Runs `foreign`.
    #[inline]
    pub(crate) fn run(&mut self, foreign: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) {
            self.keep(panic);
        }
    }

    #[cold]
    fn keep(&mut self, panic: Box<dyn Any + Send>) {
        match self.0 {
            None => self.0 = Some(panic),
            Some(_) => drop_quietly(panic),
        }
    }

    /// Wakes `waker`.
    #[inline]
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.run(|| waker.wake());
    }

    /// True when something has panicked so far.
    pub(crate) fn has_panicked(&self) -> bool {
        self.0.is_some()
    }

    /// Resumes the first of the panics, if there was any and the thread is not panicking.
    #[inline]
    pub(crate) fn end(mut self) {
        if let Some(panic) = self.0.take() {
            resume(panic);
        }
    }
}

impl Drop for PanicCollector {
    #[inline]
    fn drop(&mut self) {
        if let Some(panic) = self.0.take() {
            drop_quietly(panic);
        }
    }
}

#[cold]
fn resume(panic: Box<dyn Any + Send>) {
    if std::thread::panicking() {
        drop_quietly(panic);
    } else {
        resume_unwind(panic);
    }
}

/// Wakes `waker`. Its panic is passed on unless the thread is panicking.
#[inline]
pub(crate) fn wake(waker: Waker) {
    if std::thread::panicking() {
        quietly(|| waker.wake());
    } else {
        waker.wake();
    }
}

/// Wakes all, whichever of them panic.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut panics = PanicCollector::default();
    wakers.into_iter().for_each(|waker| panics.wake(waker));
    panics.end();
}

/// Wakes all, and survives their panics.
pub(crate) fn wake_all_quietly(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        quietly(|| waker.wake());
    }
}

/// Runs foreign code, and survives its panic.
#[inline]
pub(crate) fn quietly(foreign: impl FnOnce()) {
    forget_panic(catch_unwind(AssertUnwindSafe(foreign)));
}

/// Drops a value of a user's type, and survives its panic.
#[inline]
pub(crate) fn drop_quietly<T>(value: T) {
    quietly(|| drop(value));
}

/// Drops the payload of a panic that is not resumed. The payload's own drop may panic in turn: the payload of
/// that panic is leaked.
#[inline]
pub(crate) fn forget_panic(caught: std::thread::Result<()>) {
    let Err(payload) = caught else { return };
    if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
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
    fn the_first_panic_is_resumed_after_all_have_run() {
        let ran = catch_unwind(|| wake_all([panics("one"), Waker::noop().clone(), panics("two")]));
        assert_eq!(ran.unwrap_err().downcast_ref(), Some(&"one"));
    }

    #[test]
    fn a_second_payload_whose_drop_panics_does_not_hide_the_first() {
        let mut panics = PanicCollector::default();
        panics.run(|| resume_unwind(Box::new("first")));
        panics.run(|| resume_unwind(Box::new(Bomb(2))));
        let ended = catch_unwind(AssertUnwindSafe(|| panics.end()));
        assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"first"));
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
