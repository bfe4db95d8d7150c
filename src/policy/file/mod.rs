#![doc = include_str!("README.md")]

mod error;
mod kinds;
mod legs;
mod queue;
mod table;
mod tree;

pub use error::{Fault, PolicyFileError};
pub use kinds::{FromTable, Kinds};
pub use table::Table;

use super::spec::{PolicySpec, SpecError};
use std::path::Path;
use tree::Node;

/// The format of a policy file.
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

    /// Reads a policy of legs of the [standard](Kinds::standard) kinds from a text.
    ///
    /// # Errors
    /// [`PolicyFileError`]: the first mistake, with line and column.
    pub fn parse(text: &str, format: Format) -> Result<Self, PolicyFileError> {
        Kinds::standard().parse(text, format)
    }

    /// Reads a policy of legs of the [standard](Kinds::standard) kinds from a file, whose name ends in `.toml` or `.json`.
    ///
    /// # Errors
    /// [`PolicyFileError`]: it cannot be read, is larger than [`MAX_FILE`](Self::MAX_FILE), or is no policy.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PolicyFileError> {
        Kinds::standard().read(path)
    }
}

impl Kinds {
    /// Reads a policy of legs of these kinds from a text.
    ///
    /// # Errors
    /// [`PolicyFileError`]: the first mistake, with line and column.
    pub fn parse(&self, text: &str, format: Format) -> Result<PolicySpec, PolicyFileError> {
        let root = match format {
            Format::Toml => tree::toml(text)?,
            Format::Json => tree::json(text)?,
        };
        let file = Table::of(text, &root, "policy")?;
        file.only(&[
            "max_wait",
            "max_queue",
            "max_queue_units",
            "lateness",
            "order",
            "eviction",
            "leg",
        ])?;
        let legs = file.list("leg")?.unwrap_or(&[]);
        let spec = PolicySpec {
            max_wait: file.time("max_wait")?,
            max_queue: file
                .whole("max_queue", 0, u64::MAX)?
                .map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            max_queue_units: file.whole("max_queue_units", 0, u64::MAX)?,
            lateness: file.time("lateness")?,
            order: queue::order(file)?,
            eviction: queue::eviction(file)?,
            legs: legs
                .iter()
                .map(|node| legs::leg(self, text, node))
                .collect::<Result<_, _>>()?,
        };
        match spec.check() {
            Ok(()) => Ok(spec),
            Err(error) => Err(located(file, legs, &error)),
        }
    }

    /// Reads a policy of legs of these kinds from a file, whose name ends in `.toml` or `.json`.
    ///
    /// # Errors
    /// [`PolicyFileError`]: it cannot be read, is larger than [`MAX_FILE`](PolicySpec::MAX_FILE), or is no policy.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<PolicySpec, PolicyFileError> {
        let path = path.as_ref();
        read_bytes(path)
            .and_then(|(bytes, format)| self.parse_bytes(&bytes, format))
            .map_err(|error| error.of_file(path))
    }

    pub(super) fn parse_bytes(&self, bytes: &[u8], format: Format) -> Result<PolicySpec, PolicyFileError> {
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
fn located(file: Table<'_>, legs: &[Node], error: &SpecError) -> PolicyFileError {
    let leg = error.position().and_then(|position| legs.get(position));
    let mut at = leg.map_or(file.place(error.key()), |leg| leg.at);
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
