//! The plant: workers that serve first come, first served, and requests that come by chance, of two classes.

use crate::{END, Setting, workers};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tollgate::{LimiterExt, ManualClock, Outcome, Permit, Semaphore};
use tollgate_resilience::adaptive::{Adaptive, Aimd};

/// Requests per second: twice the capacity of 20 workers.
const LOAD: f64 = 800.0;
/// The mean time of service, in seconds; half of it fixed, half by chance (shifted exponential).
const SERVICE: f64 = 0.05;
/// An answer later than this is useless.
pub(crate) const LATE: Duration = Duration::from_millis(250);

/// The events of one second.
#[derive(Clone, Default)]
pub(crate) struct Second {
    pub(crate) limit: usize,
    pub(crate) in_flight: usize,
    /// Done in time.
    pub(crate) good: u64,
    /// Done too late.
    pub(crate) late: u64,
    /// The part of the workers that was busy.
    pub(crate) busy: f64,
    pub(crate) asked: [u64; 2],
    pub(crate) admitted: [u64; 2],
}

type Held = Permit<Arc<Adaptive>>;

struct Request {
    permit: Held,
    came: u64,
}

/// Chance, from a seed (splitmix64).
struct Chance(u64);

impl Chance {
    fn even(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Nanoseconds, exponential with this mean in seconds.
    fn wait(&mut self, mean: f64) -> u64 {
        (-(1.0 - self.even()).ln() * mean * 1e9) as u64 + 1
    }
}

/// At one instant the work that is done comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(u64),
    Tick,
    Arrival,
}

pub(crate) fn run(setting: Setting) -> Vec<Second> {
    let clock = ManualClock::new();
    let (law, pin, near) = match setting {
        Setting::Law(law) => (law, None, false),
        Setting::Near(law) => (law, None, true),
        Setting::Fixed(limit) => (Box::new(Aimd::new()) as _, Some(limit), false),
        Setting::Ideal => (Box::new(Aimd::new()) as _, Some(0), false),
    };
    let builder = Adaptive::builder(Semaphore::new(5)).law(law).bounds(1, 200).on(&clock);
    let builder = if near { builder.headroom(1.2, 0.0, 1.2) } else { builder };
    let gate = builder.window(Duration::from_millis(100), 10).build().expect("a limit");
    let gate = Arc::new(gate);

    let mut chance = Chance(42);
    let mut events = BinaryHeap::from([Reverse((0, Event::Tick)), Reverse((1, Event::Arrival))]);
    let mut queue = VecDeque::new();
    let mut serving = std::collections::HashMap::new();
    let (mut free, mut number, mut busy, mut last) = (0i64, 0, 0.0, 0u64);
    let (mut seconds, mut now_has) = (Vec::new(), 0usize);
    let mut second = Second::default();

    while let Some(Reverse((now, event))) = events.pop() {
        clock.advance_to(clock.after(tollgate::Instant::ZERO, Duration::from_nanos(now)));
        busy += serving.len() as f64 * (now - last) as f64;
        last = now;
        match event {
            Event::Tick => {
                let at = now / 1_000_000_000;
                if at > 0 {
                    second.limit = gate.limit();
                    second.in_flight = gate.limiter().in_use();
                    second.busy = (busy / 1e9 / now_has as f64).min(1.0);
                    seconds.push(std::mem::take(&mut second));
                }
                if at == END {
                    return seconds;
                }
                busy = 0.0;
                free += workers(at) as i64 - now_has as i64;
                now_has = workers(at);
                match pin {
                    Some(0) => gate.pin(crate::ideal(at)),
                    Some(limit) => gate.pin(limit),
                    None => {}
                }
                events.push(Reverse((now + 1_000_000_000, Event::Tick)));
            }
            Event::Arrival => {
                events.push(Reverse((now + chance.wait(1.0 / LOAD), Event::Arrival)));
                // One class asks twice as often as the other.
                let class = usize::from(chance.even() < 1.0 / 3.0);
                second.asked[class] += 1;
                if let Ok(permit) = gate.try_admit_owned(1) {
                    second.admitted[class] += 1;
                    queue.push_back(Request { permit, came: now });
                }
            }
            Event::Done(which) => {
                free += 1;
                let Request { permit, came } = serving.remove(&which).expect("it was being served");
                let in_time = now - came <= LATE.as_nanos() as u64;
                *(if in_time { &mut second.good } else { &mut second.late }) += 1;
                permit.finish(if in_time { Outcome::Success } else { Outcome::Overload });
            }
        }
        while free > 0
            && let Some(request) = queue.pop_front()
        {
            free -= 1;
            number += 1;
            serving.insert(number, request);
            let time = (SERVICE * 0.5e9) as u64 + chance.wait(SERVICE * 0.5);
            events.push(Reverse((now + time, Event::Done(number))));
        }
    }
    seconds
}
