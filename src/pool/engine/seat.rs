//! A worker, as others see and call it.

use super::waits::Task;
use crate::pool::hooks::wake;
use crate::sync::shim::{Mutex, MutexGuard};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

#[derive(Default)]
pub(in crate::pool) struct Seat(Mutex<Place>);

#[derive(Default)]
pub(in crate::pool) struct Place {
    /// It looks for a task, or has been called to.
    pub(super) looks: bool,
    /// It has been called since it last asked.
    called: bool,
    waker: Option<Waker>,
    /// The task that it runs started on a lent slot.
    pub(super) borrows: bool,
    /// What it runs.
    pub(in crate::pool) running: Option<Arc<dyn Task>>,
}

impl Seat {
    pub(in crate::pool) fn lock(&self) -> MutexGuard<'_, Place> {
        self.0.lock()
    }

    pub(in crate::pool) fn call(&self) {
        let waker = {
            let mut place = self.0.lock();
            place.called = true;
            place.waker.take()
        };
        wake(waker);
    }

    /// Is woken by each call from now on, before it looks at what calls are about.
    pub(in crate::pool) fn listen(&self, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let mut place = self.0.lock();
        place.called = false;
        let old = place.waker.replace(waker);
        drop(place);
        drop(old);
    }

    /// Ready once for each time that it was called.
    pub(in crate::pool) fn poll_called(&self, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut place = self.0.lock();
        if std::mem::take(&mut place.called) {
            return Poll::Ready(());
        }
        let old = place.waker.replace(waker);
        drop(place);
        drop(old);
        Poll::Pending
    }
}
