//! Calls user code that may panic: wakers, drops, and the pool's hooks.

pub(crate) use crate::sync::unwind::drop_quietly;
pub(super) use crate::sync::unwind::{forget_panic, quietly};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// The payload of a task's panic.
pub(super) type Payload = Box<dyn Any + Send>;

/// Takes the payload of a panic in a task that has no handle.
pub(super) type PanicHook = dyn Fn(Payload) + Send + Sync;

/// Drops a value of a user's type. Returns the payload if the drop panics.
pub(super) fn drop_caught<T>(value: T) -> Option<Payload> {
    catch_unwind(AssertUnwindSafe(|| drop(value))).err()
}

/// Wakes, and contains a panic of the waker: the thread that completes a task is not the waker's.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        quietly(|| waker.wake());
    }
}

/// Implements `Debug` as a struct with these fields, which is not exhaustive.
macro_rules! opaque_debug {
    ([$($params:tt)*] $type:ty, $name:literal $(, |$this:ident| $($field:ident = $value:expr),+)?) => {
        impl<$($params)*> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut shown = f.debug_struct($name);
                $(let $this = self;
                $(shown.field(stringify!($field), &$value);)+)?
                shown.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use opaque_debug;
