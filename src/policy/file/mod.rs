#![doc = include_str!("README.md")]

mod error;
mod kinds;
mod legs;
mod partitions;
mod queue;
mod table;
mod tree;

pub use error::{Fault, PolicyFileError};
pub use kinds::{FromTable, Kinds};
pub use table::Table;

use super::spec::{KeyTier, KeyedSpec, PolicySetSpec, PolicySpec, SpecError};
use std::path::Path;
use tree::{Entry, Value};

/// The format of a policy file.
///
/// ```
/// # use tollgate::policy::file::Format;
/// # use std::path::Path;
/// assert_eq!(Format::of_path(Path::new("gate.toml")), Some(Format::Toml));
/// assert_eq!(Format::of_path(Path::new("gate.json")), Some(Format::Json));
/// assert_eq!(Format::of_path(Path::new("gate.yaml")), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// [TOML](https://toml.io) 1.1.
    Toml,
    /// JSON, as RFC 8259 has it: no comments.
    Json,
}

impl Format {
    /// The format of a file of this name: `.toml` or `.json`.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

impl PolicySpec {
    /// The largest file that is read, in bytes.
    pub const MAX_FILE: u64 = 1 << 20;
}

/// What a policy file holds: one policy, a [`PolicySpec`], or those of a service, a [`PolicySetSpec`].
///
/// The reader, a source and its last good version are of the kind of file that is asked for:
///
/// ```
/// use tollgate::policy::file::{Format, Kinds};
/// use tollgate::policy::spec::{PolicySetSpec, PolicySpec};
///
/// let leg = |table: &str| format!("[[{table}]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = 2\n");
/// let one: PolicySpec = Kinds::standard().parse(&leg("leg"), Format::Toml)?;
/// let several: PolicySetSpec = Kinds::standard().parse(&leg("policy.global.leg"), Format::Toml)?;
/// assert_eq!(several.policies["global"], one);
/// # Ok::<(), tollgate::policy::file::PolicyFileError>(())
/// ```
pub trait FileSpec: sealed::FileSpec {}

impl FileSpec for PolicySpec {}
impl FileSpec for PolicySetSpec {}

mod sealed {
    use super::{Kinds, PolicyFileError, SpecError, Table};

    pub trait FileSpec: Sized + Send {
        /// Reads what can be read without a look at the whole.
        fn of_file(kinds: &Kinds, file: Table<'_>) -> Result<Self, PolicyFileError>;

        fn check(&self) -> Result<(), SpecError>;
    }
}

impl sealed::FileSpec for PolicySpec {
    fn of_file(kinds: &Kinds, file: Table<'_>) -> Result<Self, PolicyFileError> {
        file.only(&[
            "max_wait",
            "max_queue",
            "max_queue_units",
            "lateness",
            "order",
            "eviction",
            "leg",
        ])?;
        let legs = file.list("leg")?.unwrap_or(&[]).iter();
        Ok(Self {
            max_wait: file.time("max_wait")?,
            max_queue: file.size("max_queue", 0)?,
            max_queue_units: file.whole("max_queue_units", 0, u64::MAX)?,
            lateness: file.time("lateness")?,
            order: queue::order(file)?,
            eviction: queue::eviction(file)?,
            legs: legs
                .map(|node| legs::leg(kinds, file.text, node))
                .collect::<Result<_, _>>()?,
        })
    }

    fn check(&self) -> Result<(), SpecError> {
        self.check()
    }
}

impl sealed::FileSpec for PolicySetSpec {
    fn of_file(kinds: &Kinds, file: Table<'_>) -> Result<Self, PolicyFileError> {
        file.only(&["policy", "keyed", "partitions"])?;
        let policy = |entry: &Entry| PolicySpec::of_file(kinds, Table::of(file.text, &entry.node, &entry.key)?);
        let tier = |entry: &Entry| match &entry.node.value {
            Value::Text(tier) => Ok(KeyTier::Named(tier.clone())),
            Value::Table(_) => policy(entry).map(KeyTier::Own),
            _ => Err(file.odd(&entry.node, &entry.key, "the name of a tier or a table with a policy")),
        };
        let keyed = |entry: &Entry| {
            let keyed = Table::of(file.text, &entry.node, &entry.key)?;
            keyed.only(&["max_keys", "default", "tier", "keys"])?;
            let max_keys = keyed.size("max_keys", 1)?;
            let default = keyed.text("default", "the name of a tier")?;
            Ok(KeyedSpec {
                max_keys: max_keys.ok_or_else(|| keyed.missing("max_keys", "the most keys that are kept"))?,
                default: match default {
                    Some(default) => default.to_owned(),
                    None => return Err(keyed.missing("default", "the tier of a key that has no other")),
                },
                tiers: keyed.map("tier", policy)?,
                keys: keyed.map("keys", tier)?,
            })
        };
        Ok(Self {
            policies: file.map("policy", policy)?,
            keyed: file.map("keyed", keyed)?,
            partitions: file.map("partitions", |entry| {
                partitions::partitions(Table::of(file.text, &entry.node, &entry.key)?)
            })?,
        })
    }

    fn check(&self) -> Result<(), SpecError> {
        self.check()
    }
}

/// Writes the functions that read a `$spec` of legs of the standard kinds.
macro_rules! read_standard {
    ($spec:ty, $what:literal) => {
        impl $spec {
            #[doc = concat!("Reads ", $what, " of legs of the [standard](Kinds::standard) kinds from a text.")]
            ///
            /// # Errors
            /// [`PolicyFileError`]: the first mistake, with line and column.
            pub fn parse(text: &str, format: Format) -> Result<Self, PolicyFileError> {
                Kinds::standard().parse(text, format)
            }

            #[doc = concat!("Reads ", $what, " of legs of the [standard](Kinds::standard) kinds from a file.")]
            /// Its name ends in `.toml` or `.json`.
            ///
            /// # Errors
            #[doc = concat!("[`PolicyFileError`]: it cannot be read, is larger than [`PolicySpec::MAX_FILE`], or is not ", $what, ".")]
            pub fn read(path: impl AsRef<Path>) -> Result<Self, PolicyFileError> {
                Kinds::standard().read(path)
            }
        }
    };
}
read_standard!(PolicySpec, "a policy");
read_standard!(PolicySetSpec, "the policies of a service");

impl Kinds {
    /// Reads [what a file holds](FileSpec), of legs of these kinds, from a text.
    ///
    /// # Errors
    /// [`PolicyFileError`]: the first mistake, with line and column.
    pub fn parse<S: FileSpec>(&self, text: &str, format: Format) -> Result<S, PolicyFileError> {
        let root = match format {
            Format::Toml => tree::toml(text)?,
            Format::Json => tree::json(text)?,
        };
        let file = Table::of(text, &root, "policy")?;
        let spec = S::of_file(self, file)?;
        match spec.check() {
            Ok(()) => Ok(spec),
            Err(error) => Err(located(file, &error)),
        }
    }

    /// Reads [what a file holds](FileSpec), of legs of these kinds, from a file whose name ends in `.toml` or `.json`.
    ///
    /// # Errors
    /// [`PolicyFileError`]: it cannot be read, is larger than [`MAX_FILE`](PolicySpec::MAX_FILE), or holds something else.
    pub fn read<S: FileSpec>(&self, path: impl AsRef<Path>) -> Result<S, PolicyFileError> {
        let path = path.as_ref();
        read_bytes(path)
            .and_then(|(bytes, format)| self.parse_bytes(&bytes, format))
            .map_err(|error| error.of_file(path))
    }

    pub(super) fn parse_bytes<S: FileSpec>(&self, bytes: &[u8], format: Format) -> Result<S, PolicyFileError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.parse(text, format),
            Err(error) => {
                let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                let why = "this is no UTF-8, and nothing else is allowed".into();
                Err(PolicyFileError::at(&good, good.len(), Fault::Syntax { why }))
            }
        }
    }
}

/// Reads a file, and its format by its name.
pub(super) fn read_bytes(path: &Path) -> Result<(Vec<u8>, Format), PolicyFileError> {
    use std::io::Read;
    let Some(format) = Format::of_path(path) else {
        return Err(PolicyFileError::unreadable(
            "its name ends in neither `.toml` nor `.json`",
        ));
    };
    let unreadable = |error: std::io::Error| PolicyFileError::unreadable(error.to_string());
    let mut bytes = Vec::new();
    let most = PolicySpec::MAX_FILE;
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than the {most} bytes that are allowed");
        return Err(PolicyFileError::unreadable(why));
    }
    Ok((bytes, format))
}

/// The place in the file of a mistake that shows only in the whole policy.
fn located(file: Table<'_>, error: &SpecError) -> PolicyFileError {
    let mut policy = file;
    for table in error.tables() {
        policy = policy.table(table).ok().flatten().unwrap_or(policy);
    }
    let legs = policy.list("leg").ok().flatten().unwrap_or(&[]);
    let leg = error.position().and_then(|position| legs.get(position));
    let mut at = leg.map_or(policy.place(error.key()), |leg| leg.at);
    let mut table = leg.and_then(|leg| Table::of(file.text, leg, "leg").ok());
    // Down the path of the key, `peak.steps[1].quota`, as far as there is something.
    for part in error.key().split('.') {
        let Some(here) = table else { break };
        let (key, row) = match part.split_once('[') {
            Some((key, row)) => (key, row.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        at = here.get(key).map_or(at, |node| node.at);
        table = match row {
            None => here.table(key).ok().flatten(),
            Some(row) => {
                let rows = here.list(key).ok().flatten();
                let row = rows.and_then(|rows| rows.get(row));
                at = row.map_or(at, |row| row.at);
                row.and_then(|row| Table::of(file.text, row, key).ok())
            }
        };
    }
    let fault = Fault::Value {
        key: error.key().into(),
        why: error.fault().into(),
    };
    PolicyFileError::at(file.text, at, fault)
}
