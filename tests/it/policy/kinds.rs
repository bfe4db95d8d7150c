//! Kinds of legs that a user registers, in a file and while it changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::policy::ReloadableLegs;
use tollgate::policy::file::{Format, FromTable, Kinds, PolicyFileError, Table};
use tollgate::policy::spec::{
    LegSpec, LoadMetric, Peak, PeakKey, PeakStep, PolicySpec, Rule, SemaphoreRule, SpecError, When,
};
use tollgate::sync::{Notify, WaitQueue};
use tollgate::{
    Ask, Clock, ClockReading, Demand, Inherit, Limiter, LimiterExt, ManualClock, Outcome, Policy, ReadyAt, Reason,
    Refusal, Semaphore, Ticket, Wait,
};

/// Gives its units away once.
#[derive(Default)]
struct Budget {
    granted: AtomicU64,
    spent: AtomicU64,
    notify: Notify,
}

/// A ticket that does not fit beside others into that of a policy.
#[derive(Clone, Copy)]
struct Spent([u64; 10]);

impl Ticket for Spent {
    const WORDS: usize = 10;
    fn write(&self, words: &mut [u64]) {
        words[..10].copy_from_slice(&self.0);
    }
    fn read(words: &[u64]) -> Self {
        Self(words[..10].try_into().unwrap())
    }
}

impl Budget {
    fn left(&self) -> u64 {
        (self.granted.load(Ordering::SeqCst)).saturating_sub(self.spent.load(Ordering::SeqCst))
    }
}

impl Limiter for Budget {
    type Ticket = Spent;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<Spent, Refusal<'_>> {
        let units = demand.units();
        if self.left() < units {
            return Err(Refusal::new(Reason::Saturated, "budget", units, Wait::Event));
        }
        self.spent.fetch_add(units, Ordering::SeqCst);
        Ok(Spent([units; 10]))
    }
    fn cancel(&self, ticket: Spent, _: &ClockReading) {
        assert!(ticket.0.iter().all(|word| *word == ticket.0[0]));
        self.spent.fetch_sub(ticket.0[9], Ordering::SeqCst);
        self.notify.notify_all();
    }
    fn finish(&self, ticket: Spent, _: Outcome, _: &ClockReading) {
        assert!(ticket.0.iter().all(|word| *word == ticket.0[0]));
    }
    fn forget(&self, _: Spent) {}
    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.notify);
        match self.left() < demand.units() {
            true => ReadyAt::on_event("budget"),
            false => ReadyAt::NOW,
        }
    }
    fn queues<'a>(&'a self, _: &mut dyn FnMut(&'a dyn WaitQueue)) {}
}

#[derive(Clone, Debug, PartialEq)]
struct BudgetRule {
    units: u64,
    currency: String,
}

impl Rule for BudgetRule {
    type Limiter = Budget;
    const KIND: &'static str = "budget";
    const PEAK: Option<PeakKey> = Some(PeakKey::Limit);

    fn build(&self, _: &Clock) -> Result<Budget, SpecError> {
        let budget = Budget::default();
        budget.granted.store(self.units, Ordering::SeqCst);
        Ok(budget)
    }
    fn check(&self) -> Result<(), SpecError> {
        match self.units % 2 {
            0 => Ok(()),
            _ => Err(SpecError::new(
                "units",
                "an odd number was given, and an even one is allowed",
            )),
        }
    }
    fn fixed(&self) -> String {
        self.currency.clone()
    }
    fn change(&self, budget: &Budget, to: &Self, _: Inherit) {
        budget.granted.store(to.units, Ordering::SeqCst);
        budget.notify.notify_all();
    }
    fn tighter(&self, other: &Self) -> Self {
        let units = self.units.min(other.units);
        Self { units, ..self.clone() }
    }
    fn reset(budget: &Budget) {
        budget.spent.store(0, Ordering::SeqCst);
        budget.notify.notify_all();
    }
    fn at(&self, step: &PeakStep) -> Self {
        let units = step.limit.unwrap_or(self.units);
        Self { units, ..self.clone() }
    }
    fn available(budget: &Budget) -> Option<u64> {
        Some(budget.left())
    }
    fn most(&self) -> Option<u64> {
        Some(self.units)
    }
}

impl FromTable for BudgetRule {
    const KEYS: &'static [&'static str] = &["units", "currency"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let units = table.whole("units", 1, 1_000)?;
        Ok(Self {
            units: units.ok_or_else(|| table.missing("units", "the units that it gives away"))?,
            currency: table.text("currency", "a text")?.unwrap_or("EUR").to_owned(),
        })
    }
}

fn parse(text: &str) -> Result<PolicySpec, PolicyFileError> {
    Kinds::standard().with::<BudgetRule>().parse(text, Format::Toml)
}

fn budget(rest: &str) -> String {
    format!(
        "[[leg]]\nname = \"month\"\nkind = \"budget\"\n{rest}\n[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = 9\n"
    )
}

fn left(policy: &Policy<ReloadableLegs>) -> Option<u64> {
    policy.limiter().leg("month").unwrap().available
}

/// Given a file that names a registered kind, when it is built, then the leg admits, refuses, and is reported as any other.
#[test]
fn a_file_names_a_kind_that_a_user_registered() {
    let spec = parse(&budget("units = 6\nper = \"coins\"")).unwrap();
    assert_eq!(spec.legs[0].rule.kind(), "budget");
    let policy = spec.build(&ManualClock::new()).unwrap();
    let coins = |n| Ask::one().cost(tollgate::Cost::new("coins"), n);
    drop(policy.try_admit(coins(4)).unwrap());
    drop(policy.reserve(coins(2)).unwrap());
    let refused = policy.try_admit(coins(3)).unwrap_err();
    assert_eq!((refused.leg(), refused.reason()), ("month", Reason::Saturated));

    let status = policy.limiter().leg("month").unwrap();
    assert_eq!(
        (status.kind(), status.available, status.capacity),
        ("budget", Some(2), Some(6))
    );
    let decision = policy.explain(coins(3));
    let refused = decision.refused_by().unwrap();
    assert_eq!(
        (&*refused.leg, refused.units, refused.available),
        ("month", Some(3), Some(2))
    );
}

#[test]
fn a_mistake_in_a_registered_kind_has_its_line_and_column() {
    let rows = [
        (budget("unit = 6"), 4, 1, "key `unit` is unknown here; allowed: name"),
        (budget("currency = \"CHF\""), 1, 1, "key `units` is missing"),
        (budget("units = 2_000"), 4, 9, "a whole number of 1 to 1000"),
        (budget("units = 2\ncurrency = 3"), 5, 12, "a text is allowed"),
        (budget("units = 3"), 4, 9, "an odd number was given"),
        (
            budget("units = 2").replace("\"budget\"", "\"budge\""),
            3,
            8,
            "semaphore, partition, budget",
        ),
        (
            budget(
                "units = 2\npeak = { leg = \"in flight\", metric = \"use\", steps = [{ above = 1, quota = \"1/s\" }] }",
            ),
            5,
            54,
            "peak.steps[0].limit",
        ),
    ];
    for (text, line, column, words) in rows {
        let error = parse(&text).unwrap_err();
        assert_eq!((error.line(), error.column()), (Some(line), Some(column)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let unknown = PolicySpec::parse(&budget("units = 2"), Format::Toml).unwrap_err();
    assert!(unknown.to_string().contains("`budget` was given"), "{unknown}");
}

/// Given a leg of a registered kind that has spent something, when a version changes a number that can change in place, then its
/// state is kept and waiters are judged anew; when it changes another one, then the leg starts fresh.
#[test]
fn a_version_keeps_the_state_of_a_registered_kind_or_replaces_it() {
    let clock = ManualClock::new();
    let policy = parse(&budget("units = 6")).unwrap().build(&clock).unwrap();
    drop(policy.try_admit(5).unwrap());
    let apply = |rest: &str| policy.apply(parse(&budget(rest)).unwrap()).unwrap();
    clock.run(async {
        let wait = policy.admit(3);
        let raise = async {
            apply("units = 8");
        };
        let (permit, ()) = futures::join!(wait, raise);
        drop(permit.unwrap());
    });
    assert_eq!(left(&policy), Some(0));
    apply("units = 4");
    assert_eq!(left(&policy), Some(0));
    apply("units = 10");
    assert_eq!(left(&policy), Some(2));
    apply("units = 12\ninherit = \"reset\"");
    assert_eq!(left(&policy), Some(12));
    drop(policy.try_admit(7).unwrap());
    apply("units = 12\ncurrency = \"CHF\"");
    assert_eq!(left(&policy), Some(12));
    apply("units = 12");
    assert_eq!(left(&policy), Some(5), "the leg of before came back");
}

/// Given a load that crosses a mark to and fro, then a registered kind has the numbers of the row, and is given nothing.
#[test]
fn a_load_changes_the_number_of_a_registered_kind() {
    let peak = "units = 8\npeak = { leg = \"in flight\", metric = \"use\", steps = [{ above = 0.2, limit = 4 }] }";
    let policy = parse(&budget(peak)).unwrap().build(&ManualClock::new()).unwrap();
    let held: Vec<_> = (0..2).map(|_| policy.try_admit(1).unwrap()).collect();
    assert_eq!(left(&policy), Some(2));
    drop(held);
    assert_eq!(left(&policy), Some(6));
}

/// Given a registered kind whose leg is measured for another, when an admission is cancelled, then the measured rate has exactly
/// the units of the others.
#[test]
fn the_rate_of_a_registered_kind_is_measured() {
    let mut spec = parse(&budget("units = 100")).unwrap();
    spec.legs[1] =
        LegSpec::new("throttle", SemaphoreRule { limit: 0 }).when(When::above("month", LoadMetric::Rate, 2.5));
    let policy = spec.build(&ManualClock::new()).unwrap();
    drop(policy.try_admit(2).unwrap());
    drop(policy.reserve(50).unwrap());
    assert!(!policy.limiter().leg("throttle").unwrap().applies);
    drop(policy.try_admit(1).unwrap());
    assert!(policy.limiter().leg("throttle").unwrap().applies);
    spec.legs[1].when = Some(When::above("month", LoadMetric::Use, 0.5));
    let error = spec.check().unwrap_err();
    assert!(error.fault().contains("a budget as `month` is in no use"), "{error}");
}

/// A limiter that the program holds already, as a leg.
struct Held<L>(Arc<L>, &'static str);

impl<L> Clone for Held<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), self.1)
    }
}

impl<L> PartialEq for Held<L> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<L> std::fmt::Debug for Held<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.1)
    }
}

impl<L: Limiter + 'static> Rule for Held<L> {
    type Limiter = Arc<L>;
    const KIND: &'static str = "held";
    const HOLDS: bool = true;

    fn build(&self, _: &Clock) -> Result<Arc<L>, SpecError> {
        Ok(Arc::clone(&self.0))
    }
}

/// Given a remote limiter that the program holds, when a file names it, then the leg shares its permits with another process, and a
/// version without it leaves it as it is.
#[cfg(feature = "remote")]
#[test]
fn a_file_names_a_remote_limiter_that_the_program_holds() {
    use tollgate::remote::{Key, Memory, Remote};
    let clock = ManualClock::new();
    let store = Arc::new(Memory::new(&clock));
    let machine = || {
        let remote = Remote::permits(Key::new("gpus").unwrap(), 2).on(&clock);
        Arc::new(remote.in_place(Arc::clone(&store)).unwrap())
    };
    let (here, there) = (machine(), machine());
    let kinds = Kinds::standard().with_reader(&["remote"], move |table| match table.text("remote", "a name")? {
        Some("gpus") => Ok(Held(Arc::clone(&here), "gpus")),
        _ => Err(table.wrong("remote", "`gpus` is allowed")),
    });
    let text = "[[leg]]\nname = \"gpus\"\nkind = \"held\"\nremote = \"gpus\"\n";
    let read = || kinds.parse::<PolicySpec>(text, Format::Toml).unwrap();
    let policy = read().build(&clock).unwrap();
    clock.run(async {
        let held = policy.admit(1).await.unwrap();
        let other = there.acquire(1).await.unwrap();
        let (waited, ()) = futures::join!(policy.admit(1), async { drop(other) });
        assert_eq!(policy.limiter().in_use("gpus"), Some(2));
        drop(waited.unwrap());
        policy.apply(read()).unwrap();
        assert_eq!(policy.limiter().in_use("gpus"), Some(1));
        drop(held);
        assert!(there.acquire(2).await.is_ok());
    });
    let error = kinds.parse::<PolicySpec>(
        &text.replace("\"gpus\"\nk", "\"a\"\nk").replace("\"gpus\"", "\"tpus\""),
        Format::Toml,
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "policy:4:10: key `remote`: `gpus` is allowed"
    );
}

#[test]
fn a_limiter_stands_in_one_leg_and_keeps_the_clock_of_the_policy() {
    let clock = ManualClock::new();
    let permits = Held(Arc::new(Semaphore::new(2)), "permits");
    let twice = [LegSpec::new("one", permits.clone()), LegSpec::new("two", permits)];
    let error = PolicySpec::new(twice).build(&clock).unwrap_err();
    assert_eq!((error.leg(), error.key()), (Some("two"), "kind"));
    assert!(error.fault().contains("stands in leg `one` as well"), "{error}");

    let rate = tollgate::TokenBucket::new(tollgate::Quota::per_second(1)).on(&ManualClock::new());
    let rate = Held(Arc::new(rate), "rate");
    let error = PolicySpec::new([LegSpec::new("rate", rate)]).build(&clock).unwrap_err();
    assert!(error.fault().contains("another clock"), "{error}");
}

/// Given a kind of a known name, when it is registered, then it stands in place of that one.
#[test]
fn a_registered_kind_replaces_one_of_its_name() {
    #[derive(Clone, Debug, PartialEq)]
    struct Closed;
    impl Rule for Closed {
        type Limiter = Semaphore;
        const KIND: &'static str = "semaphore";
        fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
            Ok(Semaphore::new(0))
        }
    }
    let text = "[[leg]]\nname = \"x\"\nkind = \"semaphore\"\n";
    let kinds = Kinds::standard().with_reader(&[], |_| Ok(Closed));
    assert_eq!(kinds.names().filter(|name| *name == "semaphore").count(), 1);
    let spec: PolicySpec = kinds.parse(text, Format::Toml).unwrap();
    let policy = spec.build(&ManualClock::new()).unwrap();
    assert!(policy.try_admit(1).is_err());
    // The built-in kind is another one: it starts fresh.
    let standard = PolicySpec::parse(&format!("{text}limit = 3\n"), Format::Toml).unwrap();
    policy.apply(standard).unwrap();
    assert!(policy.try_admit(3).is_ok());
    let table = Peak {
        leg: "x".into(),
        metric: LoadMetric::Use,
        over: Duration::from_secs(1),
        steps: Vec::new(),
    };
    let closed = LegSpec::new("y", Closed).peak(table);
    let error = PolicySpec::new([LegSpec::new("x", SemaphoreRule { limit: 1 }), closed]).check();
    assert!(error.is_err());
}
