//! Exhaustive models of the protocols. Build with `RUSTFLAGS="--cfg tollgate_loom"`.
#![cfg(tollgate_loom)]

mod adaptive;
mod breaker;
mod upstream;

/// Every interleaving of two threads, whatever bound the environment sets.
fn exhaustive(model: impl Fn() + Send + Sync + 'static) {
    bounded(None, model);
}

/// Every interleaving with at most `bound` preemptions: for three threads.
fn bounded(preemptions: impl Into<Option<usize>>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(model);
}

/// A point that another thread has passed, or has not. It orders nothing, and makes loom try both.
///
/// Loom remembers the last access of an atomic alone. A thread that reads it before it changes it hides that of another thread,
/// and loom does not try that access after the change.
#[derive(Clone)]
struct Passed(std::sync::Arc<loom::sync::atomic::AtomicBool>);

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
