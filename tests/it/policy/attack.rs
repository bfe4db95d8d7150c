//! The README's policy under attack for an hour, in virtual time: 1,000 asks a second of every size from 0 to 2^64-1, beside a
//! client with steady demand, of which some waits.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tollgate::{
    Ask, Cost, Limiter, LimiterExt, ManualClock, Permit, Policy, Quota, Reason, Refusal, Semaphore, SlidingWindow,
    TokenBucket,
};

const TOKENS: Cost = Cost::new("tokens");
/// A cost that no leg counts.
const BYTES: Cost = Cost::new("bytes");
const TOKENS_PER_MINUTE: u64 = 600_000;
const IN_FLIGHT: usize = 24;
/// The milliseconds of a step, in each of which the attacker sends an ask.
const STEP: usize = 10;

fn readme(clock: &ManualClock) -> Policy<impl Limiter + 'static> {
    Policy::builder()
        .on(clock)
        .limit(TokenBucket::new(Quota::per_minute(300)).on(clock).named("requests"))
        .limit(
            TokenBucket::new(Quota::per_minute(TOKENS_PER_MINUTE))
                .on(clock)
                .per(TOKENS)
                .named("tokens"),
        )
        .limit(
            SlidingWindow::new(40, Duration::from_secs(2))
                .unwrap()
                .on(clock)
                .named("window"),
        )
        .limit(Semaphore::new(IN_FLIGHT).named("in flight"))
        .max_wait(Duration::from_secs(5))
        .max_queue(200)
        .build()
        .unwrap()
}

/// What the attacker sends.
#[derive(Clone, Copy, PartialEq)]
enum Attack {
    Nothing,
    /// Asks that no instant can admit.
    Impossible,
    /// One ask a second that can be admitted.
    Possible,
    Both,
}

/// Asks of every size: powers of two, their neighbours, and random ones, as calls, as tokens and as both.
struct Asks(u64);

impl Asks {
    fn random(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn size(&mut self) -> u64 {
        let (random, power) = (self.random(), 1 << (self.random() % 64));
        match self.random() % 6 {
            0 => power,
            1 => power - 1,
            2 => power + 1,
            3 => u64::MAX - random % 2,
            4 => random % power,
            _ => random,
        }
    }

    /// The next ask that can be admitted at some instant, or that cannot.
    fn next(&mut self, possible: bool) -> Ask {
        loop {
            let (calls, tokens) = match self.random() % 3 {
                0 => (self.size(), 0),
                1 => (1, self.size()),
                _ => (self.size(), self.size()),
            };
            if possible == (calls <= IN_FLIGHT as u64 && tokens <= TOKENS_PER_MINUTE) {
                return Ask::many(calls).cost(TOKENS, tokens).cost(BYTES, self.size());
            }
        }
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Client {
    Honest,
    Attacker,
}

/// How an ask ended: its number, the millisecond, and the reason if it was refused.
type Ended = (u64, u64, Option<Reason>);

/// What became of the asks that can be admitted.
#[derive(Default)]
struct Outcome {
    honest: Vec<Ended>,
    attacker: Vec<Ended>,
}

impl Outcome {
    fn note(&mut self, client: Client, ended: Ended) {
        match client {
            Client::Honest => self.honest.push(ended),
            Client::Attacker => self.attacker.push(ended),
        }
    }
}

/// Waiting for it is refused by what can never admit it; asking at once by the first leg that cannot admit it now.
#[track_caller]
fn never(refusal: Refusal, waits: bool, closely: bool) {
    assert!(!waits || refusal.reason() == Reason::Oversized, "{refusal}");
    // It is computed only when it is asked for.
    assert!(!closely || refusal.retry_after().is_none(), "{refusal}");
}

fn hour(attack: Attack) -> Outcome {
    let clock = ManualClock::new();
    let policy = readme(&clock);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let (mut impossible, mut possible) = (Asks(18), Asks(81));
    let mut outcome = Outcome::default();
    type Wait<'a, P> = Pin<Box<dyn Future<Output = Result<Permit<&'a P>, Refusal>> + 'a>>;
    let mut waits: Vec<(Client, u64, Wait<'_, _>)> = Vec::new();
    let mut held = VecDeque::new();
    for ms in (0..3_600_000_u64).step_by(STEP) {
        clock.advance(Duration::from_millis(STEP as u64));
        while held.front().is_some_and(|(until, _)| *until <= ms) {
            held.pop_front();
        }
        if matches!(attack, Attack::Impossible | Attack::Both) {
            for i in 0..STEP {
                let ask = impossible.next(false);
                match i % 2 {
                    0 => never(policy.try_admit(ask).unwrap_err(), false, i == 0),
                    _ => match pin!(policy.admit(ask)).poll(&mut context) {
                        Poll::Ready(ended) => never(ended.unwrap_err(), true, i == 1),
                        Poll::Pending => panic!("{ask:?} waits"),
                    },
                }
            }
        }
        // Two a second, and 40 more every 20 seconds, of which some have to wait.
        let mut asks = vec![None; 2];
        if ms % 500 == 0 {
            asks[0] = Some((Client::Honest, Ask::one().cost(TOKENS, 1_500)));
        }
        if ms % 20_000 == 250 {
            asks.resize(40, Some((Client::Honest, Ask::one().cost(TOKENS, 1_500))));
        }
        if ms % 1_000 == 70 && matches!(attack, Attack::Possible | Attack::Both) {
            asks[1] = Some((Client::Attacker, possible.next(true)));
        }
        for (client, ask) in asks.into_iter().flatten() {
            waits.push((client, ms, Box::pin(policy.admit(ask))));
            woken.0.store(true, Ordering::Relaxed);
        }
        while woken.0.swap(false, Ordering::Relaxed) {
            waits.retain_mut(|(client, asked, wait)| {
                let Poll::Ready(ended) = wait.as_mut().poll(&mut context) else {
                    return true;
                };
                outcome.note(*client, (*asked, ms, ended.as_ref().err().map(Refusal::reason)));
                held.extend(ended.ok().map(|permit| (ms + 1_200, permit)));
                false
            });
        }
    }
    outcome
}

#[track_caller]
fn same(one: &[Ended], other: &[Ended]) {
    let different = one.iter().zip(other).find(|(one, other)| one != other);
    assert_eq!(different, None);
    assert_eq!(one.len(), other.len());
}

fn admitted(ended: &[Ended]) -> usize {
    ended.iter().filter(|(.., refused)| refused.is_none()).count()
}

#[test]
fn asks_that_can_never_be_admitted_leave_no_trace() {
    let (alone, attacked) = (hour(Attack::Nothing), hour(Attack::Impossible));
    same(&alone.honest, &attacked.honest);
    assert!(admitted(&alone.honest) > 14_000, "{} admitted", admitted(&alone.honest));
    assert!(
        alone.honest.iter().any(|(asked, ended, _)| ended - asked > 1_000),
        "there were waits"
    );
}

#[test]
fn an_attacker_takes_no_more_than_it_is_rightly_admitted() {
    let (rightly, attacked) = (hour(Attack::Possible), hour(Attack::Both));
    same(&rightly.honest, &attacked.honest);
    same(&rightly.attacker, &attacked.attacker);
}
