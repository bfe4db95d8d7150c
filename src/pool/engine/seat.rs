//! A worker, as others see and call it.

use crate::pool::hooks::wake;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
pub(in crate::pool) struct Seat<W> {
    /// It looks for a task, or has been called to. Under the lock of the pool.
    looks: AtomicBool,
    place: Mutex<Place>,
    pub(in crate::pool) own: W,
}

#[derive(Default)]
struct Place {
    /// It has been called since it last asked.
    called: bool,
    waker: Option<Waker>,
}

impl<W> Seat<W> {
    pub(in crate::pool) fn new(own: W) -> Self {
        Self {
            looks: AtomicBool::default(),
            place: Mutex::default(),
            own,
        }
    }

    /// It looks from now on.
    pub(super) fn looks(&self) {
        // Relaxed, as below: under the lock of the pool.
        self.looks.store(true, Ordering::Relaxed);
    }

    /// True when it has looked until now.
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

    /// Is woken by each call from now on, before it looks at what calls are about.
    pub(in crate::pool) fn listen(&self, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let mut place = self.place.lock();
        place.called = false;
        let old = place.waker.replace(waker);
        drop(place);
        drop(old);
    }

    /// Ready once for each time that it was called.
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
