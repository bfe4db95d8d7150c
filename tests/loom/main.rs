//! Exhaustive models of the protocols. Build with `RUSTFLAGS="--cfg tollgate_loom"`.
#![cfg(tollgate_loom)]

mod bucket;
#[cfg(feature = "channel")]
mod channel;
mod compose;
mod keyed;
mod line;
mod live;
mod loan;
mod partitions;
#[cfg(feature = "pool")]
mod pool;
mod semaphore;
mod turns;

/// What a source of the library that is compiled here imports.
mod sync {
    pub(crate) mod shim {
        pub(crate) use loom::sync::atomic;
    }
}
mod time {
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Instant(pub(crate) u64);

    impl Instant {
        pub(crate) fn ticks(self) -> u64 {
            self.0
        }
    }
}

/// Every interleaving of two threads, whatever bound the environment sets.
#[allow(dead_code)]
fn exhaustive(model: impl Fn() + Send + Sync + 'static) {
    bounded(None, model);
}

/// Every interleaving with at most `bound` preemptions: for three threads.
#[allow(dead_code)]
fn bounded(preemptions: impl Into<Option<usize>>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // Two policies at two legs take more steps than the default allows.
    builder.max_branches = 20_000;
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}

/// A thread of the model with a stack that is not small where nothing is optimised, in words.
#[allow(dead_code)]
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> loom::thread::JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(1 << 16);
    builder.spawn(work).unwrap()
}

/// [`bounded`], on such a thread.
#[allow(dead_code)]
fn roomy(preemptions: usize, model: impl Fn() + Copy + Send + Sync + 'static) {
    bounded(preemptions, move || spawn(model).join().unwrap());
}

/// A point that another thread has passed, or has not. It orders nothing, and makes loom try both.
///
/// Loom remembers the last access of an atomic alone. A thread that reads it before it changes it hides that of another thread,
/// and loom does not try that access after the change.
#[derive(Clone)]
#[allow(dead_code)]
struct Passed(std::sync::Arc<loom::sync::atomic::AtomicBool>);

#[allow(dead_code)]
impl Passed {
    fn new() -> Self {
        Self(std::sync::Arc::new(loom::sync::atomic::AtomicBool::new(false)))
    }

    fn pass(&self) {
        self.0.store(true, loom::sync::atomic::Ordering::Relaxed);
    }

    fn or_not(&self) -> bool {
        self.0.load(loom::sync::atomic::Ordering::Relaxed)
    }
}
