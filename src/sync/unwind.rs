//! Steps that call users' code, any of which may panic: the other steps are made all the same.
//!
//! Every composite reserves, cancels, commits, settles, finishes and forgets its legs through here. The first panic goes on
//! after the last step. Later ones end here: a panic that leaves a destructor during a panic aborts the process.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::panicking;

/// Calls `act` for each item, whichever of the calls panic. Neither the items nor `act` own anything.
#[inline(always)]
pub(crate) fn each<I: Iterator>(items: I, act: impl FnMut(I::Item)) {
    if panicking() {
        return each_quietly(items, act);
    }
    let mut left = Left(Some((items, act)));
    while let Some((items, act)) = &mut left.0 {
        match items.next() {
            Some(item) => act(item),
            None => break,
        }
    }
    mem::forget(left);
}

/// Makes `first` and then `second`, whichever of them panics.
#[inline(always)]
pub fn both(first: impl FnOnce(), second: impl FnOnce()) {
    if panicking() {
        return in_panic(first, second);
    }
    let rest = Rest::new(second);
    first();
    rest.make();
}

/// The step that is left when another panics: it is made then, unless it has been made or forgotten before.
///
/// It is moved out of here, so that its captures stay in registers until then.
pub struct Rest<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Rest<F> {
    /// Has `step` to be made.
    #[inline(always)]
    pub fn new(step: F) -> Self {
        Self(Some(step))
    }

    /// Nothing has panicked: the step is made now.
    #[inline(always)]
    pub fn make(mut self) {
        let step = self.0.take();
        mem::forget(self);
        if let Some(step) = step {
            step();
        }
    }

    /// Nothing has panicked: the step is not needed, or the caller makes it.
    #[inline(always)]
    pub fn forget(self) {
        mem::forget(self);
    }
}

impl<F: FnOnce()> Drop for Rest<F> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(step) = self.0.take() {
            quietly(step);
        }
    }
}

/// The items of [`each`] that are left, as [`Rest`] is the step of [`both`].
struct Left<I: Iterator, F: FnMut(I::Item)>(Option<(I, F)>);

impl<I: Iterator, F: FnMut(I::Item)> Drop for Left<I, F> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some((items, act)) = self.0.take() {
            each_quietly(items, act);
        }
    }
}

#[cold]
#[inline(never)]
fn each_quietly<I: Iterator>(items: I, mut act: impl FnMut(I::Item)) {
    for item in items {
        quietly(|| act(item));
    }
}

/// [`both`] while a panic is under way: one more that got out would abort the process.
#[cold]
#[inline(never)]
pub(crate) fn in_panic(first: impl FnOnce(), second: impl FnOnce()) {
    quietly(first);
    quietly(second);
}

/// The answer of users' code; `None` when it panics while another panic is under way.
#[inline]
pub fn ask<R>(foreign: impl FnOnce() -> R) -> Option<R> {
    if !panicking() {
        return Some(foreign());
    }
    let mut said = None;
    quietly(|| said = Some(foreign()));
    said
}

/// Makes a step, and ends its panic.
#[cold]
#[inline(never)]
pub(crate) fn quietly(step: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(step)) {
        drop_quietly(panic);
    }
}

/// A payload may panic when it is dropped. The payload of that panic is leaked.
fn drop_quietly(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        mem::forget(again);
    }
}
