//! The changes of a version.

use crate::spec::SpecError;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;

/// The changes of a version of a policy, or of a set. Printed as one line.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload};
/// let leg = |name: &str, limit| LegSpec::new(name, LegKind::semaphore(limit));
/// let policy = PolicySpec::new([leg("a", 4), leg("b", 4)]).build(&ManualClock::new())?;
/// let changes = policy.apply(PolicySpec::new([leg("a", 5), leg("c", 4)]))?;
/// assert_eq!(changes.to_string(), "version 2: `leg.a.limit` 4 -> 5; `leg.b` removed; `leg.c` added");
/// # Ok::<(), tollgate_config::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
#[non_exhaustive]
pub struct Changes {
    /// The number of the version: a policy and a set start with 1.
    pub version: u64,
    /// The settings that differ.
    pub changed: Vec<Change>,
    /// How many live keys of each map of a set were changed, where there are any.
    pub live: Vec<(String, usize)>,
    /// The policies of a set that kept the version before, since a leg of a kind of your own could not be built. It could before.
    pub refused: Vec<SpecError>,
}

/// A setting that differs.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload};
/// let spec = |limit| PolicySpec::new([LegSpec::new("slots", LegKind::semaphore(limit))]);
/// let policy = spec(1).build(&ManualClock::new())?;
/// let change = &policy.apply(spec(2))?.changed[0];
/// assert_eq!((&*change.key, change.from.as_deref(), change.to.as_deref()), ("leg.slots.limit", Some("1"), Some("2")));
/// # Ok::<(), tollgate_config::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Its place in a file. A leg has its name there.
    pub key: String,
    /// The old value; empty for a whole table, `None` where there was none.
    pub from: Option<String>,
    /// The new value.
    pub to: Option<String>,
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => String::new(),
        other => other.to_string(),
    }
}

/// The legs of a policy by name, and their order.
fn by_name(value: &Value) -> Option<(Value, Vec<&str>)> {
    let rows = value.as_array()?;
    let names: Option<Vec<_>> = rows.iter().map(|row| row.get("name")?.as_str()).collect();
    let names = names?;
    let table = names
        .iter()
        .zip(rows)
        .map(|(name, row)| ((*name).to_owned(), row.clone()));
    Some((table.collect::<Map<_, _>>().into(), names))
}

impl Changes {
    pub(crate) fn between<S: Serialize>(version: u64, old: &S, new: &S) -> Self {
        let mut changes = Self {
            version,
            ..Self::default()
        };
        // What has no value of serde, such as a number that is none, differs in nothing.
        let [old, new] = [old, new].map(|spec| serde_json::to_value(spec).unwrap_or_default());
        changes.note("", Some(&old), Some(&new));
        changes
    }

    /// Notes all that differs below a key.
    fn note(&mut self, key: &str, from: Option<&Value>, to: Option<&Value>) {
        if from == to {
            return;
        }
        if let (Some((from, old)), Some((to, new))) = (from.and_then(by_name), to.and_then(by_name)) {
            self.note(key, Some(&from), Some(&to));
            let order = |names: &[&str], others: &[&str]| {
                let common: Vec<_> = names.iter().filter(|name| others.contains(name)).copied().collect();
                Value::String(common.join(", "))
            };
            self.note(key, Some(&order(&old, &new)), Some(&order(&new, &old)));
        } else if let (Some(Value::Object(from)), Some(Value::Object(to))) = (from, to) {
            let mut keys: Vec<_> = from
                .keys()
                .chain(to.keys().filter(|key| !from.contains_key(*key)))
                .collect();
            keys.sort();
            for below in keys {
                let dot = if key.is_empty() { "" } else { "." };
                self.note(&format!("{key}{dot}{below}"), from.get(below), to.get(below));
            }
        } else {
            let (key, from, to) = (key.to_owned(), from.map(text), to.map(text));
            self.changed.push(Change { key, from, to });
        }
    }

    /// True when nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.live.is_empty() && self.refused.is_empty()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, from, to } = self;
        match (from.as_deref(), to.as_deref()) {
            (None, Some("")) => write!(f, "`{key}` added"),
            (Some(""), None) => write!(f, "`{key}` removed"),
            (from, to) => write!(f, "`{key}` {} -> {}", from.unwrap_or("none"), to.unwrap_or("none")),
        }
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: ", self.version)?;
        if self.is_empty() {
            return f.write_str("nothing has changed");
        }
        let mut parts: Vec<_> = self.changed.iter().map(Change::to_string).collect();
        for (name, keys) in &self.live {
            let s = if *keys == 1 { "" } else { "s" };
            parts.push(format!("{keys} live key{s} of `{name}` changed"));
        }
        let refused = self.refused.iter();
        parts.extend(refused.map(|error| format!("the version before is kept for {error}")));
        f.write_str(&parts.join("; "))
    }
}
