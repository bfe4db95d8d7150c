//! What a pool tells its owner, and how it lives with what it is told by others: wakers, drops and hooks may panic.

pub(super) use crate::sync::wake::{forget_panic, quietly};
use std::any::Any;
use std::task::Waker;

/// What a task panicked with.
pub(super) type Payload = Box<dyn Any + Send>;

/// Is given what a task panicked with that has no handle.
pub(super) type PanicHook = dyn Fn(Payload) + Send + Sync;

/// Hands what no handle asks for to the hook, if there is one.
pub(super) fn tell_of_panic(hook: Option<&PanicHook>, payload: Payload) {
    match hook {
        Some(hook) => quietly(|| hook(payload)),
        None => forget_panic(Err(payload)),
    }
}

/// Hands a task that a full queue has thrown out to the hook, or drops it.
pub(super) fn discard<T>(hook: Option<&(dyn Fn(T) + Send + Sync)>, task: T) {
    match hook {
        Some(hook) => quietly(|| hook(task)),
        None => drop_quietly(task),
    }
}

/// Wakes, and survives a waker that panics: the thread that completes a task is not the waker's.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        quietly(|| waker.wake());
    }
}

/// Drops what is a user's, and survives a drop that panics.
pub(crate) fn drop_quietly<T>(value: T) {
    quietly(move || drop(value));
}
