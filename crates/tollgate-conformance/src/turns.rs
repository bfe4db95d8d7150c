//! Fairness between queues at one limiter: with steady demand in two of them, each gets its part, and no wait grows without
//! bound.

use super::suite::{Suite, Tally, Violation};
use super::waits::policy_of;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tollgate::{Ask, Clock, Instant, Limiter, ManualClock, Policy};

/// The least part, in percent, of each of two queues that are never empty.
const LEAST_PART: u64 = 40;
/// The number of times that the capacity comes back in one run.
const ROUNDS: u32 = 40;
/// The duration of the work if capacity does not come back by itself.
const WORK: Duration = Duration::from_millis(10);
/// A run ends after this many admissions of one queue.
const PLENTY: u64 = 100_000;

/// The results of the clients of one queue.
#[derive(Default)]
struct Queue {
    admitted: Cell<u64>,
    longest: Cell<Duration>,
    refused: Cell<bool>,
}

impl Queue {
    fn note_wait(&self, wait: Duration) {
        self.longest.set(self.longest.get().max(wait));
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

/// The parameters of a run.
#[derive(Clone, Copy)]
struct Plan {
    ask: Ask,
    work: Option<Duration>,
    end: Instant,
}

/// Asks again as soon as its work is done.
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
        queue.note_wait(clock.between(since, clock.now()));
        if let Some(work) = plan.work {
            clock.sleep(work).await;
        }
        drop(permit);
    }
}

/// Law 7: two policies in front of one limiter, one of them with three times as many clients as the other.
pub(super) fn policies_take_turns<L: Limiter + 'static>(
    suite: &Suite<L>,
    law: &mut Tally<'_>,
) -> Result<(), Violation> {
    for sizes in [[3, 1], [1, 3]] {
        let world = suite.world();
        let policies = [policy_of(&world)?, policy_of(&world)?];
        share(suite, law, &world.clock, sizes, &policies)?;
    }
    Ok(())
}

fn share<S, L: Limiter + 'static>(
    suite: &Suite<S>,
    law: &mut Tally<'_>,
    clock: &ManualClock,
    sizes: [usize; 2],
    [one, other]: &[Policy<L>; 2],
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
    // Enough clients that one always waits, even when all the capacity comes back at once.
    let counts = sizes.map(|size| size * (suite.capacity + 1));
    let asked: Vec<_> = (0..counts[0] + counts[1]).map(|_| Cell::new(None)).collect();
    let mut clients: Vec<Client<'_>> = Vec::new();
    for (number, asked) in asked.iter().enumerate() {
        clients.push(match number < counts[0] {
            true => Box::pin(client(one, clock, plan, &queues[0], asked)),
            false => Box::pin(client(other, clock, plan, &queues[1], asked)),
        });
    }
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    while clock.now() < plan.end {
        if woken.0.swap(false, Ordering::Relaxed) {
            clients.retain_mut(|client| client.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        } else if !clock.advance_to_next_timer() {
            law.ensure(false, || "two policies wait, and no timer is left".to_owned())?;
        }
    }
    let now = clock.now();
    for (number, since) in asked.iter().enumerate() {
        if let Some(since) = since.get() {
            queues[usize::from(number >= counts[0])].note_wait(clock.between(since, now));
        }
    }
    let admitted = queues.each_ref().map(|queue| queue.admitted.get());
    let sum = admitted[0] + admitted[1];
    let least = admitted[0].min(admitted[1]);
    law.ensure(queues.iter().all(|queue| !queue.refused.get()), || {
        "of two policies one was refused, although its waits have no bound".to_owned()
    })?;
    law.ensure(sum >= u64::from(ROUNDS) / 2, || {
        format!("two policies wait all the time, and were admitted {sum} times in {ROUNDS} rounds")
    })?;
    law.ensure(least * 100 >= sum * LEAST_PART, || {
        format!(
            "two policies with {counts:?} clients were admitted {admitted:?} times: less than {LEAST_PART} % of all"
        )
    })?;
    let longest = queues.iter().map(|queue| queue.longest.get()).max().unwrap_or_default();
    law.ensure(longest <= span / 2, || {
        format!("with {counts:?} clients in two policies a wait took more than half of {ROUNDS} rounds")
    })
}
