//! Waking, when a waker may panic: those after it are woken all the same, and the first panic goes on; or it ends here, for
//! a thread that is not the waker's.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

/// Runs foreign code one after the other, and puts off its panics until it is dropped.
#[derive(Default)]
pub(crate) struct Each(Option<Box<dyn Any + Send>>);

impl Each {
    /// Runs `foreign`.
    #[inline]
    pub(crate) fn run(&mut self, foreign: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) {
            self.0.get_or_insert(panic);
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

    /// Panics with the first of the panics, if there was any.
    #[inline]
    pub(crate) fn end(self) {
        if let Some(panic) = self.0 {
            resume_unwind(panic);
        }
    }
}

/// Wakes all, whichever of them panic.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut each = Each::default();
    wakers.into_iter().for_each(|waker| each.wake(waker));
    each.end();
}

/// Runs foreign code, and survives its panic.
#[cfg(feature = "pool")]
pub(crate) fn quietly(foreign: impl FnOnce()) {
    forget_panic(catch_unwind(AssertUnwindSafe(foreign)));
}

/// Drops the payload of a panic that nobody wants, which may panic in turn: then that is leaked.
#[cfg(feature = "pool")]
pub(crate) fn forget_panic(caught: std::thread::Result<()>) {
    if let Err(payload) = caught
        && let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload)))
    {
        std::mem::forget(again);
    }
}
