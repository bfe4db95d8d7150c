//! The state of a worker that other threads read, and the means to call it.

use crate::pool::hooks::wake;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

pub(in crate::pool) struct Seat<W> {
    /// The number of the worker within its pool, counted from zero.
    pub(in crate::pool) index: usize,
    /// True if the worker looks for a task, or has been called to look. Written under the lock of the pool.
    looks: AtomicBool,
    place: Mutex<Place>,
    pub(in crate::pool) own: W,
}

#[derive(Default)]
struct Place {
    /// True if the worker has been called since it last asked.
    called: bool,
    waker: Option<Waker>,
}

impl<W: Default> Seat<W> {
    pub(super) fn new(index: usize) -> Self {
        Self {
            index,
            looks: AtomicBool::default(),
            place: Mutex::default(),
            own: W::default(),
        }
    }
}

impl<W> Seat<W> {
    /// Marks the worker as looking for a task.
    pub(super) fn looks(&self) {
        // Relaxed, here and in `looks_no_more`: the lock of the pool orders the accesses.
        self.looks.store(true, Ordering::Relaxed);
    }

    /// Ends the search for a task. Returns true if the worker was looking.
    pub(super) fn looks_no_more(&self) -> bool {
        let looked = self.looks.load(Ordering::Relaxed);
        if looked {
            self.looks.store(false, Ordering::Relaxed);
        }
        looked
    }

    pub(in crate::pool) fn call(&self) {
        let waker = {
            let mut place = self.place.lock();
            place.called = true;
            place.waker.take()
        };
        wake(waker);
    }

    /// Registers the waker for each later call, before the worker reads the state that calls are about.
    pub(in crate::pool) fn listen(&self, cx: &Context<'_>) {
        while self.poll_called(cx).is_ready() {}
    }

    /// Ready once per call.
    pub(in crate::pool) fn poll_called(&self, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut place = self.place.lock();
        if std::mem::take(&mut place.called) {
            return Poll::Ready(());
        }
        let old = place.waker.replace(waker);
        drop(place);
        drop(old);
        Poll::Pending
    }
}
