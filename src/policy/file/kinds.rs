//! The kinds of legs that a file may name.

use super::error::PolicyFileError;
use super::table::Table;
use crate::policy::spec::{LegRule, Rule};
use std::fmt;
use std::sync::Arc;

/// A [`Rule`] that reads its numbers from the table of a leg.
///
/// ```
/// # use tollgate::policy::file::{Format, FromTable, Kinds, PolicyFileError, Table};
/// # use tollgate::policy::spec::{PolicySpec, Rule, SpecError};
/// # use tollgate::{Clock, LimiterExt, ManualClock, Semaphore};
/// /// Twice as many as the file says.
/// #[derive(Clone, Debug, PartialEq)]
/// struct Twice(u64);
/// impl Rule for Twice {
///     type Limiter = Semaphore;
///     const KIND: &'static str = "twice";
///     fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
///         Ok(Semaphore::new(2 * self.0 as usize))
///     }
///     fn text(&self) -> String {
///         self.0.to_string()
///     }
/// }
/// impl FromTable for Twice {
///     const KEYS: &'static [&'static str] = &["of"];
///     fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
///         table.whole("of", 1, 1_000)?.map(Twice).ok_or_else(|| table.missing("of", "a whole number"))
///     }
/// }
/// let text = "[[leg]]\nname = 'slots'\nkind = 'twice'\nof = 3";
/// let spec: PolicySpec = Kinds::standard().with::<Twice>().parse(text, Format::Toml)?;
/// assert!(spec.build(&ManualClock::new())?.try_admit(6).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait FromTable: Rule {
    /// The keys of its numbers. The keys that a leg of any kind may have, such as `name` and `per`, need not stand here.
    const KEYS: &'static [&'static str];

    /// Reads the numbers. Numbers that only [`check`](Rule::check) refuses get their place in the file as well, by their key.
    ///
    /// # Errors
    /// [`PolicyFileError`]: made by the methods of [`Table`], with line and column.
    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError>;
}

/// The kinds of legs that a policy file may name.
///
/// [`PolicySpec::parse`](crate::policy::spec::PolicySpec::parse) and its like read the [standard](Self::standard) ones. With a kind of
/// your own, read by the methods of this type.
///
/// ```
/// use tollgate::policy::file::{Format, FromTable, Kinds, PolicyFileError, Table};
/// use tollgate::policy::spec::{PolicySpec, Rule, SpecError};
/// use tollgate::{Clock, LimiterExt, ManualClock, Semaphore};
///
/// /// Admits one at a time, in an order that the file cannot change.
/// #[derive(Clone, Debug, PartialEq)]
/// struct Exclusive;
///
/// impl Rule for Exclusive {
///     type Limiter = Semaphore;
///     const KIND: &'static str = "exclusive";
///     const HOLDS: bool = true;
///
///     fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
///         Ok(Semaphore::new(1))
///     }
/// }
/// impl FromTable for Exclusive {
///     const KEYS: &'static [&'static str] = &[];
///
///     fn from_table(_: Table<'_>) -> Result<Self, PolicyFileError> {
///         Ok(Self)
///     }
/// }
///
/// let kinds = Kinds::standard().with::<Exclusive>();
/// let spec: PolicySpec = kinds.parse("[[leg]]\nname = \"writer\"\nkind = \"exclusive\"\n", Format::Toml)?;
/// let policy = spec.build(&ManualClock::new())?;
/// let held = policy.try_admit(1)?;
/// assert_eq!(policy.try_admit(1).unwrap_err().leg(), "writer");
/// # drop(held);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Kinds(Vec<Kind>);

type Read = dyn Fn(Table<'_>) -> Result<LegRule, PolicyFileError> + Send + Sync;

#[derive(Clone)]
pub(super) struct Kind {
    name: &'static str,
    pub(super) keys: &'static [&'static str],
    pub(super) read: Arc<Read>,
}

impl Kinds {
    /// No kind.
    ///
    /// ```
    /// # use tollgate::policy::file::{Format, Kinds};
    /// # use tollgate::policy::spec::PolicySpec;
    /// let text = "[[leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = 4";
    /// assert!(Kinds::standard().names().any(|name| name == "semaphore"));
    /// assert_eq!(Kinds::none().names().count(), 0);
    /// let error = Kinds::none().parse::<PolicySpec>(text, Format::Toml).unwrap_err();
    /// assert_eq!(error.line(), Some(3));
    /// ```
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// These kinds and `R`, in place of one of the same name.
    #[must_use]
    pub fn with<R: FromTable>(self) -> Self {
        self.with_reader(R::KEYS, R::from_table)
    }

    /// The same for a rule that is made of more than the file says, by `read`: of a remote limiter, say, that the program holds.
    #[must_use]
    pub fn with_reader<R: Rule>(
        mut self,
        keys: &'static [&'static str],
        read: impl Fn(Table<'_>) -> Result<R, PolicyFileError> + Send + Sync + 'static,
    ) -> Self {
        self.0.retain(|kind| kind.name != R::KIND);
        self.0.push(Kind {
            name: R::KIND,
            keys,
            read: Arc::new(move |table| Ok(read(table)?.into())),
        });
        self
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|kind| kind.name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Kind> {
        self.0.iter().find(|kind| kind.name == name)
    }
}

impl Default for Kinds {
    fn default() -> Self {
        Self::standard()
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
