//! Steps that call users' code, any of which may panic: the other steps are made all the same.
//!
//! Every composite reserves, cancels, settles and finishes its legs through here. The first panic goes on
//! after the last step. Later ones end here: a panic that leaves a destructor during a panic aborts the process.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::panicking;

/// Calls `act` for each item, whichever of the calls panic. Neither the items nor `act` own anything.
#[inline(always)] // row: from a file
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

/// Makes `first` and then `second`, whichever of them panics: a limiter around another counts the end of the work, also when the one inside
/// panics. The first panic goes on after both. During a panic both end here.
///
/// ```
/// # use std::cell::Cell;
/// # use std::panic::{AssertUnwindSafe, catch_unwind};
/// use tollgate::sync::both;
///
/// let counted = Cell::new(0);
/// let ends = || both(|| panic!("the limiter inside"), || counted.set(1));
/// assert!(catch_unwind(AssertUnwindSafe(ends)).is_err());
/// assert_eq!(counted.get(), 1);
/// ```
#[inline(always)] // row: built policy
pub fn both(first: impl FnOnce(), second: impl FnOnce()) {
    if panicking() {
        return in_panic(first, second);
    }
    let rest = Finally::new(second);
    first();
    rest.run();
}

/// A step that is made even if what comes before it panics: what was taken comes back.
///
/// ```
/// # use std::cell::Cell;
/// # use std::panic::{AssertUnwindSafe, catch_unwind};
/// use tollgate::sync::Finally;
///
/// let taken = Cell::new(1);
/// let records = || {
///     let back = Finally::new(|| taken.set(0));
///     panic!("a recorder");
///     # #[allow(unreachable_code)]
///     back.forget(); // Nothing has panicked: it stays taken.
/// };
/// assert!(catch_unwind(AssertUnwindSafe(records)).is_err());
/// assert_eq!(taken.get(), 0);
/// ```
// The step is moved out when it is made, so that its captures stay in registers until then.
pub struct Finally<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Finally<F> {
    /// Has `step` made when this is dropped. A panic of it ends there.
    pub fn new(step: F) -> Self {
        Self(Some(step))
    }

    /// Nothing has panicked: the step is made now.
    pub fn run(mut self) {
        let step = self.0.take();
        mem::forget(self);
        if let Some(step) = step {
            step();
        }
    }

    /// Nothing has panicked: the step is not needed, or the caller makes it.
    pub fn forget(self) {
        mem::forget(self);
    }
}

impl<F: FnOnce()> Drop for Finally<F> {
    fn drop(&mut self) {
        if let Some(step) = self.0.take() {
            quietly(step);
        }
    }
}

/// The items of [`each`] that are left, as [`Finally`] is the step of [`both`].
struct Left<I: Iterator, F: FnMut(I::Item)>(Option<(I, F)>);

impl<I: Iterator, F: FnMut(I::Item)> Drop for Left<I, F> {
    #[inline(always)] // row: from a file
    fn drop(&mut self) {
        if let Some((items, act)) = self.0.take() {
            each_quietly(items, act);
        }
    }
}

#[cold]
fn each_quietly<I: Iterator>(items: I, mut act: impl FnMut(I::Item)) {
    for item in items {
        quietly(|| act(item));
    }
}

/// [`both`] while a panic is under way: one more that got out would abort the process.
#[cold]
fn in_panic(first: impl FnOnce(), second: impl FnOnce()) {
    quietly(first);
    quietly(second);
}

/// Runs foreign code, and survives its panic.
#[cold]
pub(crate) fn quietly(foreign: impl FnOnce()) {
    forget_panic(catch_unwind(AssertUnwindSafe(foreign)));
}

/// Drops a value of a user's type, and survives its panic.
pub(crate) fn drop_quietly<T>(value: T) {
    quietly(|| drop(value));
}

/// Drops the payload of a panic that is not resumed. The payload's own drop may panic in turn: the payload of
/// that panic is leaked.
pub(crate) fn forget_panic(caught: std::thread::Result<()>) {
    let Err(payload) = caught else { return };
    if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        mem::forget(again);
    }
}
