//! Kinds of a program's own: a function from the numbers of a leg to a limiter.

use super::LegKind;
use crate::file::{Node, Reader};
use crate::spec::ConfigError;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use tollgate::{BoxLimiter, Clock};

type Build = dyn Fn(&Map<String, Value>, &Clock) -> Result<BoxLimiter, ConfigError> + Send + Sync;

/// The kinds of legs that a program has beside the built-in ones.
///
/// ```
/// use serde::Deserialize;
/// use std::sync::Arc;
/// use tollgate::{BoxLimiter, Clock, LimiterExt, ManualClock, Semaphore};
/// use tollgate_config::{Format, Kinds, PolicySpec};
///
/// #[derive(Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Pool {
///     pool: String,
/// }
/// // A limiter that the program holds, and its files only name.
/// let gpus = Arc::new(Semaphore::new(2));
/// let known = Arc::clone(&gpus);
/// let kinds = Kinds::new().with("pool", move |leg: Pool, _: &Clock| match &*leg.pool {
///     "gpus" => Ok(Arc::clone(&known).boxed()),
///     other => Err(format!("`{other}` was given, and gpus is allowed")),
/// });
///
/// let text = "[[leg]]\nname = 'gpus'\nkind = 'pool'\npool = 'gpus'";
/// let spec: PolicySpec = kinds.parse(text, Format::Toml)?;
/// let policy = spec.build_with(&ManualClock::new(), &kinds)?;
/// let held = policy.try_admit(1)?;
/// assert_eq!(gpus.in_use(), 1);
///
/// let error = kinds.parse::<PolicySpec>(&text.replace("pool = 'gpus'", "pool = 3"), Format::Toml).unwrap_err();
/// assert_eq!(error.to_string(), "text:4:8: key `pool`: 3 was given, and a text is allowed");
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Kinds(Arc<BTreeMap<Box<str>, Arc<Build>>>);

impl Kinds {
    /// The built-in ones alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more kind. `build` gets the numbers of a leg, all keys that are not those of any leg, and the clock of its policy. A
    /// [`ConfigError`] that it gives tells the key that is wrong.
    ///
    /// `build` also runs to check a version before anything is changed. A leg whose numbers are unchanged keeps its limiter; one with
    /// other numbers gets what `build` makes of them. A built-in kind of this name goes first.
    #[must_use]
    pub fn with<T, E>(
        mut self,
        name: impl Into<Box<str>>,
        build: impl Fn(T, &Clock) -> Result<BoxLimiter, E> + Send + Sync + 'static,
    ) -> Self
    where
        T: DeserializeOwned,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let read_and_build = move |numbers: &Map<String, Value>, clock: &Clock| {
            let told = |error: E| match error.into().downcast::<ConfigError>() {
                Ok(error) => *error,
                Err(error) => ConfigError::whole(error.to_string()),
            };
            let numbers = Node::deserialize(numbers).map_err(ConfigError::custom)?;
            build(T::deserialize(Reader(&numbers))?, clock).map_err(told)
        };
        Arc::make_mut(&mut self.0).insert(name.into(), Arc::new(read_and_build));
        self
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }

    /// Builds the limiter of the kind called `kind`.
    pub(super) fn build(
        &self,
        kind: &str,
        numbers: &Map<String, Value>,
        clock: &Clock,
    ) -> Result<BoxLimiter, ConfigError> {
        if let Some(build) = self.0.get(kind) {
            return build(numbers, clock);
        }
        let needs = |feature| format!("`{kind}` needs the feature `{feature}` of tollgate-config");
        let fault = match kind {
            "calendar-window" => needs("calendar"),
            "breaker" | "adaptive" => needs("resilience"),
            _ => {
                let known = LegKind::deserialize(StrDeserializer::<ConfigError>::new(kind));
                let names = self.names().map(|name| format!(", {name}")).collect::<String>();
                let fault = known.err().unwrap_or_default();
                fault.fault().replace(" is allowed", &format!("{names} is allowed"))
            }
        };
        Err(ConfigError::new("kind", fault))
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
