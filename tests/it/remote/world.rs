//! What the tests of limits that machines share have in common: a store of reference in virtual time, and futures polled once.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::ManualClock;
use tollgate::remote::{Key, Memory, Remote, RemoteBuilder};

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<Memory>,
    pub(crate) key: Key,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1_000));
        Self {
            store: Arc::new(Memory::new(&clock)),
            clock,
            key: Key::new("shared").unwrap(),
        }
    }

    /// A limiter of one machine, whose driver runs by itself.
    pub(crate) fn make(&self, builder: RemoteBuilder) -> Remote<Arc<Memory>> {
        builder.on(&self.clock).in_place(Arc::clone(&self.store)).unwrap()
    }
}

pub(crate) fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// What a future comes to that need not wait.
#[track_caller]
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match poll(pin!(future)) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}
