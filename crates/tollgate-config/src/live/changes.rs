//! The changes of a version.

use crate::spec::ConfigError;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;

/// The changes of a version of a policy, or of a set. Printed as one line.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload};
/// let leg = |name: &str, limit| LegSpec::new(name, LegKind::Semaphore { limit });
/// let policy = PolicySpec::new([leg("a", 4), leg("b", 4)]).build(&ManualClock::new())?;
/// let changes = policy.apply(PolicySpec::new([leg("a", 5), leg("c", 4)]))?;
/// assert_eq!(changes.to_string(), "version 2: `leg.a.limit` 4 -> 5; `leg.b` removed; `leg.c` added");
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
#[non_exhaustive]
pub struct Changes {
    /// The number of the version: a policy and a set start with 1.
    pub version: u64,
    /// The settings that differ: each its place in a file, where a leg has its name, and the old and the new value.
    pub changed: Vec<String>,
    /// How many live keys of each map of a set were changed, where there are any.
    pub live: Vec<(String, usize)>,
    /// The policies of a set that kept the version before, since a leg of a kind of your own could not be built. It could before.
    pub refused: Vec<ConfigError>,
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
    let rows = value.as_array()?.iter();
    let names = rows.clone().map(|row| row.get("name")?.as_str());
    let names = names.collect::<Option<Vec<_>>>()?;
    let table: Map<_, _> = names.iter().map(ToString::to_string).zip(rows.cloned()).collect();
    Some((table.into(), names))
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
                let common = names.iter().copied().filter(|name| others.contains(name));
                Value::String(common.collect::<Vec<_>>().join(", "))
            };
            self.note(key, Some(&order(&old, &new)), Some(&order(&new, &old)));
        } else if let (Some(Value::Object(from)), Some(Value::Object(to))) = (from, to) {
            for below in from.keys().chain(to.keys()).collect::<BTreeSet<_>>() {
                let dot = if key.is_empty() { "" } else { "." };
                self.note(&format!("{key}{dot}{below}"), from.get(below), to.get(below));
            }
        } else {
            let shown = |value: Option<&Value>| value.map_or("none".into(), text);
            self.changed.push(match (from, to) {
                (None, Some(Value::Object(_))) => format!("`{key}` added"),
                (Some(Value::Object(_)), None) => format!("`{key}` removed"),
                _ => format!("`{key}` {} -> {}", shown(from), shown(to)),
            });
        }
    }

    /// True when nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.live.is_empty() && self.refused.is_empty()
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: ", self.version)?;
        if self.is_empty() {
            return f.write_str("nothing has changed");
        }
        let mut parts = self.changed.clone();
        for (name, keys) in &self.live {
            let s = if *keys == 1 { "" } else { "s" };
            parts.push(format!("{keys} live key{s} of `{name}` changed"));
        }
        let refused = self.refused.iter();
        parts.extend(refused.map(|error| format!("the version before is kept for {error}")));
        f.write_str(&parts.join("; "))
    }
}
