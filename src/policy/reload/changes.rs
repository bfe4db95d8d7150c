//! The changes of a version.

use crate::policy::spec::{LegSpec, PolicySpec};
use std::fmt;

/// The fate of a version that was handed in.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::policy::reload::Applied;
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// let spec = |limit| PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(limit))]);
/// let policy = spec(1).build(&ManualClock::new())?;
/// let Applied::Now(changes) = policy.apply(spec(2))? else { panic!("no change is under way") };
/// assert_eq!(changes.version, 2);
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Applied<C = Changes> {
    /// It is in force.
    Now(C),
    /// It was handed in by a waker that a change of a limit has woken further up on this thread, from a queue of your
    /// own making ([`WaitQueue::join`](crate::sync::wait_queue::WaitQueue::join)). It is put in force when that change is done.
    Next,
}

/// The changes of a version. Printed as one line.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::policy::reload::Applied;
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// let leg = |name: &str| LegSpec::new(name, LegRule::semaphore(4));
/// let policy = PolicySpec::new([leg("a"), leg("b")]).build(&ManualClock::new())?;
/// let Applied::Now(changes) = policy.apply(PolicySpec::new([leg("a"), leg("c")]))? else { panic!() };
/// assert_eq!((changes.added, changes.removed), (vec!["c".to_string()], vec!["b".to_string()]));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
#[non_exhaustive]
pub struct Changes {
    /// The number of the version: the policy starts with 1.
    pub version: u64,
    /// Legs that were added.
    pub added: Vec<String>,
    /// Legs that were removed.
    pub removed: Vec<String>,
    /// Settings that changed.
    pub changed: Vec<Change>,
}

/// A setting that has changed.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::policy::reload::Applied;
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// let spec = |limit| PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(limit))]);
/// let policy = spec(1).build(&ManualClock::new())?;
/// # let Applied::Now(changes) = policy.apply(spec(2))? else { panic!() };
/// let change = &changes.changed[0];
/// assert_eq!((&*change.leg, change.key, &*change.from, &*change.to), ("slots", "rule", "1", "2"));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The leg; empty for a setting of the queue, or the order of the legs.
    pub leg: String,
    /// The key, as in a file.
    pub key: &'static str,
    /// The old value.
    pub from: String,
    /// The new value.
    pub to: String,
}

impl Changes {
    /// True when nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    /// Notes a setting, unless it is as it was.
    pub(in crate::policy) fn note(&mut self, leg: &str, key: &'static str, from: String, to: String) {
        if from != to {
            let leg = leg.to_owned();
            self.changed.push(Change { leg, key, from, to });
        }
    }

    /// Each change, in words.
    pub(in crate::policy) fn parts(&self) -> impl Iterator<Item = String> {
        let came = self.added.iter().map(|leg| format!("`{leg}` added"));
        let went = self.removed.iter().map(|leg| format!("`{leg}` removed"));
        came.chain(went).chain(self.changed.iter().map(Change::to_string))
    }

    pub(in crate::policy) fn between(version: u64, old: &PolicySpec, new: &PolicySpec) -> Self {
        let mut changes = Self {
            version,
            ..Self::default()
        };
        let names = |spec: &PolicySpec, other: &PolicySpec| -> Vec<String> {
            let legs = spec.legs.iter().filter(|leg| other.leg(&leg.name).is_none());
            legs.map(|leg| leg.name.clone()).collect()
        };
        changes.added = names(new, old);
        changes.removed = names(old, new);
        changes.note("", "max_wait", text(&old.max_wait), text(&new.max_wait));
        changes.note("", "max_queue", text(&old.max_queue), text(&new.max_queue));
        changes.note("", "lateness", text(&old.lateness), text(&new.lateness));
        let order = |spec: &PolicySpec, other: &PolicySpec| -> String {
            let legs = spec.legs.iter().filter(|leg| other.leg(&leg.name).is_some());
            legs.map(|leg| leg.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        changes.note("", "order", order(old, new), order(new, old));
        for leg in &new.legs {
            if let Some(before) = old.leg(&leg.name) {
                for ((key, from), (_, to)) in settings(before).into_iter().zip(settings(leg)) {
                    changes.note(&leg.name, key, from, to);
                }
            }
        }
        changes
    }
}

fn text<T: fmt::Debug>(setting: &Option<T>) -> String {
    setting.as_ref().map_or("none".into(), |setting| format!("{setting:?}"))
}

/// All that can differ between two legs of one name.
fn settings(leg: &LegSpec) -> [(&'static str, String); 7] {
    [
        ("kind", leg.rule.kind().to_string()),
        ("rule", leg.rule.to_string()),
        ("per", leg.per.clone().unwrap_or("call".into())),
        ("inherit", format!("{:?}", leg.inherit)),
        ("shadow", leg.shadow.to_string()),
        ("when", text(&leg.when)),
        ("peak", text(&leg.peak)),
    ]
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { leg, key, from, to } = self;
        match leg.as_str() {
            "" => write!(f, "{key} {from} -> {to}"),
            leg => write!(f, "`{leg}` {key} {from} -> {to}"),
        }
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: ", self.version)?;
        if self.is_empty() {
            return f.write_str("nothing has changed");
        }
        f.write_str(&self.parts().collect::<Vec<_>>().join("; "))
    }
}
