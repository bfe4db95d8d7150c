//! Policies that wait for budget: who is told of room, and in which order they take it.

use crate::{budgets, counts};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{Ask, LimiterExt, ManualClock, Permit, Policy, Reason, Refusal};
use tollgate_budget::{Account, Limit, OUTPUT, Period, Rule};

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Queued = Policy<Account>;

type Admission<'a> = Pin<Box<dyn Future<Output = Result<Permit<&'a Queued>, Refusal>> + 'a>>;

/// A waiter, and how often it was woken.
struct Waiter<'a> {
    admission: Admission<'a>,
    woken: Arc<Woken>,
}

impl<'a> Waiter<'a> {
    fn new(policy: &'a Queued, ask: Ask) -> Self {
        let mut waiter = Self {
            admission: Box::pin(policy.admit(ask)),
            woken: Arc::default(),
        };
        assert!(waiter.poll().is_pending());
        waiter
    }

    fn poll(&mut self) -> Poll<Result<Permit<&'a Queued>, Refusal>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        self.admission.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// It was woken, and is admitted.
    fn admitted(mut self) -> Permit<&'a Queued> {
        assert!(self.woken.0.load(Ordering::SeqCst) > 0, "it sleeps on");
        match self.poll() {
            Poll::Ready(Ok(permit)) => permit,
            other => panic!("{other:?}"),
        }
    }
}

fn tokens(units: u64) -> Ask {
    Ask::one().cost(OUTPUT, units)
}

fn shared(limit: Limit) -> [Rule; 2] {
    [
        Rule::new("user").per(["user"]).limit(Limit::in_flight(9)),
        Rule::new("all").limit(limit),
    ]
}

/// Given a level that two accounts share, when one of them gives back what the policy of the other waits for, again and again, then
/// that is woken and admitted each time.
#[test]
fn a_policy_is_told_of_room_by_any_account_of_its_level_each_time() {
    let clock = ManualClock::new();
    let budgets = budgets(&clock, shared(Limit::in_flight(1)));
    let [ann, bob] = ["ann", "bob"].map(|user| budgets.account(&[("user", user)]));
    let policy = Policy::new(bob);
    for _ in 0..3 {
        let held = ann.reserve(Ask::one()).unwrap();
        let waiter = Waiter::new(&policy, Ask::one());
        drop(held);
        drop(waiter.admitted());
        // Without a waiter, no watcher is told.
        drop(ann.reserve(Ask::one()).unwrap());
    }
    assert_eq!(counts(&ann), [(0, 0), (0, 0)]);
}

/// Given policies of two accounts that wait for a level which both share, when room for one of them comes back, then one is admitted, and
/// the other when it has ended.
#[test]
fn policies_of_different_accounts_are_all_told() {
    let clock = ManualClock::new();
    let budgets = budgets(&clock, shared(Limit::in_flight(1)));
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|user| budgets.account(&[("user", user)]));
    let policies = [Policy::new(bob), Policy::new(eve)];
    let held = ann.reserve(Ask::one()).unwrap();
    let [mut first, mut second] = policies.each_ref().map(|policy| Waiter::new(policy, Ask::one()));
    drop(held);
    let (permit, other) = match first.poll() {
        Poll::Ready(permit) => (permit.unwrap(), second),
        Poll::Pending => match second.poll() {
            Poll::Ready(permit) => (permit.unwrap(), first),
            Poll::Pending => panic!("both sleep on"),
        },
    };
    drop(permit);
    drop(other.admitted());
}

/// Given a policy that waits for more than an account has left, when a newcomer of the same account asks for less, then it is refused until
/// the waiter has been admitted.
#[test]
fn a_newcomer_of_an_account_does_not_overtake_a_policy_that_waits() {
    let clock = ManualClock::new();
    let rule = Rule::new("user")
        .per(["user"])
        .limit(Limit::cost(OUTPUT, 100, Period::Minute));
    let account = budgets(&clock, [rule]).account(&[("user", "ann")]);
    let held = account.reserve(tokens(90)).unwrap();
    let policy = Policy::new(account.clone());
    let waiter = Waiter::new(&policy, tokens(50));
    let refused = account.try_admit(tokens(5)).unwrap_err();
    assert_eq!((refused.reason(), refused.leg()), (Reason::Saturated, "budget"));
    drop(held);
    drop(waiter.admitted());
    assert!(account.try_admit(tokens(50)).is_ok());
}

/// Given a policy that waits, when it is dropped with its account, then its budgets forget it.
#[test]
fn a_policy_that_leaves_holds_nothing_up() {
    let clock = ManualClock::new();
    let budgets = budgets(&clock, shared(Limit::in_flight(1)));
    let ann = budgets.account(&[("user", "ann")]);
    let held = ann.reserve(Ask::one()).unwrap();
    let policy = Policy::new(ann.clone());
    drop(Waiter::new(&policy, Ask::one()));
    drop(held);
    assert!(ann.try_admit(1).is_ok(), "the place was given up");
    let other = Policy::new(budgets.account(&[("user", "bob")]));
    let held = ann.reserve(Ask::one()).unwrap();
    let waiter = Waiter::new(&other, Ask::one());
    drop((policy, ann));
    drop(held);
    drop(waiter.admitted());
}
