//! What a pool tells its owner, and how it lives with what it is told by others: wakers, drops and hooks may panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// What somebody panicked with.
pub(super) type Payload = Box<dyn Any + Send>;

/// Is given what a task panicked with that has no handle.
pub(super) type PanicHook = dyn Fn(Payload) + Send + Sync;

/// Hands what nobody waits for to the hook, if there is one.
pub(super) fn tell_of_panic(hook: Option<&PanicHook>, payload: Payload) {
    match hook {
        Some(hook) => forget_panic(catch_unwind(AssertUnwindSafe(|| hook(payload)))),
        None => forget_panic(Err(payload)),
    }
}

/// Hands a task that a full queue has thrown out to the hook, or drops it.
pub(super) fn discard<T>(hook: Option<&(dyn Fn(T) + Send + Sync)>, task: T) {
    match hook {
        Some(hook) => forget_panic(catch_unwind(AssertUnwindSafe(|| hook(task)))),
        None => drop_quietly(task),
    }
}

/// Wakes, and survives a waker that panics: the thread that completes a task is not the waker's.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        let woken = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        forget_panic(woken);
    }
}

/// Drops what is a user's, and survives a drop that panics.
pub(crate) fn drop_quietly<T>(value: T) {
    forget_panic(catch_unwind(AssertUnwindSafe(move || drop(value))));
}

/// Drops the payload of a panic that nobody wants, which may panic in turn: then that is leaked.
pub(super) fn forget_panic(caught: Result<(), Payload>) {
    if let Err(payload) = caught
        && let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload)))
    {
        std::mem::forget(again);
    }
}
