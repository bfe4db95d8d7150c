//! What queues at one limiter owe each other: with steady demand in two of them, each gets its part, and no wait grows for
//! ever.

use super::suite::{Suite, Tally, Violation};
use super::waits::policy_of;
use crate::core::ask::Ask;
use crate::core::limiter::Limiter;
use crate::policy::Policy;
use crate::time::{Clock, Instant, Sleep};
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// The least part of two that wait all the time, in hundredths.
const LEAST_PART: u64 = 40;
/// How many times the capacity comes back in one run.
const ROUNDS: u32 = 40;
/// How long work takes where capacity does not come back by itself.
const WORK: Duration = Duration::from_millis(10);
/// Of how many admissions a run is over in any case.
const PLENTY: u64 = 100_000;

/// What became of the clients of one queue.
#[derive(Default)]
struct Queue {
    admitted: Cell<u64>,
    longest: Cell<u64>,
    refused: Cell<bool>,
}

impl Queue {
    fn note_wait(&self, ticks: u64) {
        self.longest.set(self.longest.get().max(ticks));
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // Relaxed, here and below: one thread.
        self.0.store(true, Ordering::Relaxed);
    }
}

type Client<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// How a run goes.
#[derive(Clone, Copy)]
struct Plan {
    ask: Ask,
    work: Option<Duration>,
    end: Instant,
}

/// Asks again as soon as it has been served, and its work is done.
async fn client<L: Limiter + 'static>(
    policy: &Policy<L>,
    clock: &Clock,
    plan: Plan,
    queue: &Queue,
    asked: &Cell<Option<Instant>>,
) {
    while clock.now() < plan.end && queue.admitted.get() < PLENTY {
        let since = clock.now();
        asked.set(Some(since));
        let Ok(permit) = policy.admit(plan.ask).await else {
            queue.refused.set(true);
            return;
        };
        asked.set(None);
        queue.admitted.set(queue.admitted.get() + 1);
        queue.note_wait(clock.now().ticks_since(since));
        if let Some(work) = plan.work {
            Sleep::until(clock, clock.after(clock.now(), work)).await;
        }
        drop(permit);
    }
}

/// Two queues in front of one limiter, one of them with three times as many clients as the other.
pub(super) fn queues_take_turns<L: Limiter + 'static>(
    suite: &Suite<L>,
    turns: &mut Tally<'_>,
) -> Result<(), Violation> {
    for sizes in [[3, 1], [1, 3]] {
        let world = suite.world();
        let (line, other) = (policy_of(&world)?, policy_of(&world)?);
        share(suite, turns, &world.clock, "two policies", sizes, &line, &other)?;
        let world = suite.world();
        let line = policy_of(&world)?;
        let lane = line.lane(Duration::from_secs(1 << 30));
        share(suite, turns, &world.clock, "a policy and its lane", sizes, &line, &lane)?;
    }
    Ok(())
}

fn share<S, A: Limiter + 'static, B: Limiter + 'static>(
    suite: &Suite<S>,
    turns: &mut Tally<'_>,
    clock: &crate::time::ManualClock,
    who: &str,
    sizes: [usize; 2],
    line: &Policy<A>,
    other: &Policy<B>,
) -> Result<(), Violation> {
    let round = suite.refill.unwrap_or(WORK);
    let span = round * ROUNDS;
    let plan = Plan {
        ask: suite.ask,
        work: suite
            .holds
            .then_some(if suite.refill.is_some() { round / 4 } else { round }),
        end: clock.after(clock.now(), span),
    };
    let queues = [Queue::default(), Queue::default()];
    // So many that there is always one that waits, also when all the capacity comes back at once.
    let counts = sizes.map(|size| size * (suite.capacity + 1));
    let asked: Vec<_> = (0..counts[0] + counts[1]).map(|_| Cell::new(None)).collect();
    let mut clients: Vec<Client<'_>> = Vec::new();
    for (number, asked) in asked.iter().enumerate() {
        clients.push(match number < counts[0] {
            true => Box::pin(client(line, clock, plan, &queues[0], asked)),
            false => Box::pin(client(other, clock, plan, &queues[1], asked)),
        });
    }
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    while clock.now() < plan.end {
        if woken.0.swap(false, Ordering::Relaxed) {
            clients.retain_mut(|client| client.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        } else if !clock.advance_to_next_timer() {
            turns.ensure(false, || format!("{who} wait, and nothing is to happen any more"))?;
        }
    }
    let now = clock.now();
    for (number, since) in asked.iter().enumerate() {
        if let Some(since) = since.get() {
            queues[usize::from(number >= counts[0])].note_wait(now.ticks_since(since));
        }
    }
    let admitted = queues.each_ref().map(|queue| queue.admitted.get());
    let sum = admitted[0] + admitted[1];
    let least = admitted[0].min(admitted[1]);
    turns.ensure(queues.iter().all(|queue| !queue.refused.get()), || {
        format!("of {who} one was refused, which may wait as long as it takes")
    })?;
    turns.ensure(sum >= u64::from(ROUNDS) / 2, || {
        format!("{who} wait all the time, and were admitted {sum} times in {ROUNDS} rounds")
    })?;
    turns.ensure(least * 100 >= sum * LEAST_PART, || {
        format!("{who} with {counts:?} clients were admitted {admitted:?} times: less than {LEAST_PART} % of all")
    })?;
    let longest = queues.iter().map(|queue| queue.longest.get()).max().unwrap_or(0);
    turns.ensure(longest <= clock.ticks_of(span / 2), || {
        format!("with {counts:?} clients in {who} a wait took more than half of {ROUNDS} rounds")
    })
}
