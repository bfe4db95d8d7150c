//! A recorder or a limiter of the user's panics at any one of its calls. Afterwards nothing is out, and each value is as the next record says.

use metrics::{Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tollgate::status::State;
use tollgate::{Demand, Description, Limiter, LimiterExt, Outcome, Permit, Refusal, Semaphore};
use tollgate_observe::{Gauges, Observed};

thread_local! {
    /// The number of the call that panics, of those that are left; all from there on if the flag is set.
    static PANICS: Cell<(u32, bool)> = const { Cell::new((u32::MAX, false)) };
}

/// A call into the user's code.
fn call() {
    let (left, all) = PANICS.get();
    let next = if left == 0 && !all {
        u32::MAX
    } else {
        left.saturating_sub(1)
    };
    PANICS.set((next, all));
    assert_ne!(left, 0, "on purpose");
}

fn step<R>(act: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}

/// Runs `situation` for each of its calls, once with that call panicking, and once with all from there on.
fn sweep(calls: u32, situation: impl Fn(&dyn Fn())) {
    for at in 0..calls {
        for all in [false, true] {
            let arm = || PANICS.set((at, all));
            situation(&arm);
            PANICS.set((u32::MAX, false));
        }
    }
}

#[derive(Default)]
struct Values(Mutex<HashMap<Key, f64>>);

struct OwnGauge(Arc<Values>, Key);

impl GaugeFn for OwnGauge {
    fn increment(&self, _: f64) {}
    fn decrement(&self, _: f64) {}
    fn set(&self, value: f64) {
        call();
        self.0.0.lock().unwrap().insert(self.1.clone(), value);
    }
}

struct OwnRecorder(Arc<Values>);

impl Recorder for OwnRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        call();
        Gauge::from_arc(Arc::new(OwnGauge(Arc::clone(&self.0), key.clone())))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Permits of the user's, with as many legs as the number says, all of which limit. It panics after it has given back.
struct Own(Semaphore, AtomicUsize);

impl Limiter for Own {
    type Ticket = <Semaphore as Limiter>::Ticket;
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        call();
        self.0.try_reserve(demand)
    }
    fn cancel(&self, ticket: Self::Ticket) {
        self.0.cancel(ticket);
        call();
    }
    fn finish(&self, ticket: Self::Ticket, outcome: Outcome) {
        self.0.finish(ticket, outcome);
        call();
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.0.look(demand)
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        for leg in &["one", "two", "three"][..self.1.load(Relaxed)] {
            call();
            let (limit, in_use, waiting) = (7, 5, 3);
            visit(
                Description::new("own")
                    .named(leg)
                    .state(State::Permits { limit, in_use, waiting }),
            );
        }
    }
}

/// Each gauge is as the next visit says: those of a leg that is gone are zero.
#[test]
fn gauges_are_right_after_a_panic_of_the_recorder_or_the_limiter() {
    sweep(40, |arm| {
        let values = Arc::<Values>::default();
        let recorder = OwnRecorder(Arc::clone(&values));
        let shown = Own(Semaphore::new(1), AtomicUsize::new(3));
        let mut gauges = Gauges::new("api");
        metrics::with_local_recorder(&recorder, || {
            arm();
            for legs in [3, 2, 3] {
                shown.1.store(legs, Relaxed);
                step(|| gauges.record(&shown));
            }
            PANICS.set((u32::MAX, false));
            shown.1.store(1, Relaxed);
            gauges.record(&shown);
        });
        for (key, value) in &*values.0.lock().unwrap() {
            let is_of = |leg| key.labels().any(|label| (label.key(), label.value()) == ("leg", leg));
            match is_of("one") {
                true => assert!(*value > 0.0, "{key}"),
                false => assert_eq!(*value, 0.0, "{key}"),
            }
        }
    });
}

/// Given a limiter that panics, then its units are back, and each admission and each end that it was asked for is counted.
#[test]
fn ends_of_work_are_counted_when_the_limiter_panics() {
    sweep(12, |arm| {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, || {
            let gate = Observed::new("own", Own(Semaphore::new(2), AtomicUsize::new(0)));
            arm();
            for outcome in [Outcome::Success, Outcome::Failure] {
                step(|| gate.try_admit(1).map(|permit| permit.finish(outcome)).is_ok());
            }
            step(|| gate.try_admit(1).map(Permit::cancel).is_ok());
            PANICS.set((u32::MAX, false));
            assert_eq!(gate.limiter().0.in_use(), 0);
            let both = gate.try_admit(2).expect("the next caller is served");
            drop(both);
        });
        let (mut granted, mut cancelled, mut held) = (0, 0, 0);
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let is = |outcome| key.key().labels().any(|label| label.value() == outcome);
            match value {
                DebugValue::Counter(count) if is("granted") => granted = count,
                DebugValue::Counter(count) if is("cancelled") => cancelled = count,
                DebugValue::Histogram(all) if key.key().name() == "tollgate.permit.held_time" => held = all.len(),
                _ => {}
            }
        }
        assert_eq!((granted - cancelled) as usize, held, "each admission has an end");
    });
}
