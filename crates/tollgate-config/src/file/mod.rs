//! Files, TOML and JSON.

mod node;

pub(crate) use node::{Node, Reader};

use crate::kind::Kinds;
use crate::spec::{ConfigError, PolicySetSpec, PolicySpec};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use tollgate::ManualClock;
use toml::de::{DeTable, DeValue};

/// The format of a file.
///
/// ```
/// # use tollgate_config::Format;
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

/// What a file may hold: a [`PolicySpec`], a [`PolicySetSpec`], or a configuration of your own that has some within.
///
/// ```
/// use tollgate_config::{ConfigFile, Format, Kinds, PolicySpec, ConfigError, parse};
///
/// #[derive(serde::Deserialize)]
/// struct AppConfig {
///     port: u16,
///     upstream: PolicySpec,
/// }
/// impl ConfigFile for AppConfig {
///     fn check_with(&self, kinds: &Kinds) -> Result<(), ConfigError> {
///         self.upstream.check_with(kinds).map_err(|error| error.within("upstream"))
///     }
/// }
///
/// let text = "port = 80\n[[upstream.leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = 4\n";
/// let config: AppConfig = parse(text, Format::Toml)?;
/// assert_eq!((config.port, config.upstream.legs.len()), (80, 1));
/// let error = parse::<AppConfig>(&text.replace("80", "80000"), Format::Toml).map(|_| ()).unwrap_err();
/// assert_eq!(error.to_string(), "text:1:8: key `port`: 80000 was given, and a whole number of 0 to 65535 is allowed");
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
pub trait ConfigFile: DeserializeOwned {
    /// Finds a mistake that shows only in the whole, with legs of these kinds as well: all that building it would.
    ///
    /// # Errors
    /// [`ConfigError`], whose path is found in the file.
    fn check_with(&self, kinds: &Kinds) -> Result<(), ConfigError> {
        let _ = kinds;
        Ok(())
    }

    /// The same with the built-in kinds alone.
    ///
    /// # Errors
    /// As those of [`check_with`](Self::check_with).
    ///
    /// ```
    /// # use tollgate_config::{ConfigFile, LegKind, LegSpec, PolicySpec};
    /// let mut spec = PolicySpec::new([LegSpec::new("slots", LegKind::Semaphore { limit: 4 })]);
    /// assert!(spec.check().is_ok());
    /// spec.legs[0].name.clear();
    /// assert_eq!(spec.check().unwrap_err().key(), "name");
    /// ```
    fn check(&self) -> Result<(), ConfigError> {
        self.check_with(&Kinds::new())
    }
}

impl ConfigFile for PolicySpec {
    fn check_with(&self, kinds: &Kinds) -> Result<(), ConfigError> {
        self.build_with(&ManualClock::new(), kinds).map(drop)
    }
}

impl ConfigFile for PolicySetSpec {
    fn check_with(&self, kinds: &Kinds) -> Result<(), ConfigError> {
        self.build_with(&ManualClock::new(), kinds).map(drop)
    }
}

/// The largest file that is read, in bytes.
pub const MAX_FILE: u64 = 1 << 20;

/// Reads a file whose name ends in `.toml` or `.json`.
///
/// # Errors
/// [`ConfigError`]: the file cannot be read, is larger than [`MAX_FILE`], or has a mistake.
///
/// ```
/// # use tollgate_config::{PolicySpec, load};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("limits.toml");
/// std::fs::write(&path, "[[leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = 4")?;
/// let spec: PolicySpec = load(&path)?;
/// assert_eq!(spec.legs.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load<S: ConfigFile>(path: impl AsRef<Path>) -> Result<S, ConfigError> {
    Kinds::new().load(path)
}

/// Reads a text.
///
/// # Errors
/// [`ConfigError`]: a mistake.
pub fn parse<S: ConfigFile>(text: &str, format: Format) -> Result<S, ConfigError> {
    Kinds::new().parse(text, format)
}

impl Kinds {
    /// Reads a file whose name ends in `.toml` or `.json`, with legs of these kinds as well.
    ///
    /// # Errors
    /// As those of [`load`].
    pub fn load<S: ConfigFile>(&self, path: impl AsRef<Path>) -> Result<S, ConfigError> {
        self.parse_content(path.as_ref(), &read_bytes(path.as_ref()))
    }

    /// Reads a text, with legs of these kinds as well.
    ///
    /// # Errors
    /// [`ConfigError`]: a mistake.
    pub fn parse<S: ConfigFile>(&self, text: &str, format: Format) -> Result<S, ConfigError> {
        match format {
            Format::Toml => {
                let wrong = |error: toml::de::Error| {
                    let at = error.span().map_or(text.len(), |span| span.start);
                    let why = error.message().trim_end().replace('\n', "; ");
                    // The one thing that shows only when values are read.
                    let why = why.replace("number overflowed", "of too many digits was given, and 38 are allowed");
                    ConfigError::whole(why).at(text, at)
                };
                let table = DeTable::parse(text).map_err(wrong)?;
                let node = Node::deserialize(toml::Deserializer::from(table.clone()));
                let read = self.read(&node.map_err(wrong)?);
                read.map_err(|error| find_in_toml(text, table.into_inner(), error))
            }
            Format::Json => {
                let read = self.read(&serde_json::from_str(text).map_err(|error| json_error(text, &error))?);
                read.map_err(|error| find_in_json(text, error))
            }
        }
    }

    fn read<S: ConfigFile>(&self, node: &Node) -> Result<S, ConfigError> {
        let spec = S::deserialize(Reader(node))?;
        spec.check_with(self)?;
        Ok(spec)
    }

    /// Reads the content of the file or the key called `name`. The error of `content` says why there is none.
    pub(crate) fn parse_content<S: ConfigFile>(
        &self,
        name: &Path,
        content: &Result<Vec<u8>, String>,
    ) -> Result<S, ConfigError> {
        let read = || {
            let unnamed = || ConfigError::whole("its name ends in neither `.toml` nor `.json`");
            let format = Format::of_path(name).ok_or_else(unnamed)?;
            let content = content.as_ref().map_err(|why| ConfigError::whole(why.as_str()))?;
            let text = std::str::from_utf8(content).map_err(|error| {
                let fault = "this is no UTF-8, and nothing else is allowed";
                ConfigError::whole(fault).at(&String::from_utf8_lossy(content), error.valid_up_to())
            })?;
            self.parse(text, format)
        };
        read().map_err(|error| error.of_file(name))
    }
}

/// Reads a file.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map(|file| file.take(MAX_FILE + 1));
    let read = file.and_then(|mut file| file.read_to_end(&mut bytes));
    match read.map_err(|error| error.to_string())? as u64 {
        0..=MAX_FILE => Ok(bytes),
        _ => Err(format!("it is longer than the {MAX_FILE} bytes that are allowed")),
    }
}

fn json_error(text: &str, error: &serde_json::Error) -> ConfigError {
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    let at = lines.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
    let why = error.to_string();
    ConfigError::whole(why.split(" at line ").next().unwrap_or_default()).at(text, at)
}

/// The row that a part of a path names, such as `[0]`.
pub(crate) fn row(part: &str) -> Option<usize> {
    part.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// A mistake at the value of its path, or at the key if that is wrong; as far down the path as there is something.
fn find_in_toml(text: &str, table: DeTable<'_>, error: ConfigError) -> ConfigError {
    let (mut value, mut at) = (&DeValue::Table(table), 0);
    for (step, part) in error.path().iter().enumerate() {
        let next = match value {
            DeValue::Table(table) => {
                let found = table.iter().find(|(key, _)| key.get_ref() == part);
                found.map(|(key, next)| (key.span(), next))
            }
            DeValue::Array(rows) => row(part).and_then(|row| rows.get(row)).map(|next| (next.span(), next)),
            _ => None,
        };
        let Some((key, next)) = next else { break };
        let span = if error.is_of_key_at(step) { key } else { next.span() };
        (value, at) = (next.get_ref(), span.start);
    }
    error.at(text, at)
}

/// The same in JSON.
fn find_in_json(text: &str, error: ConfigError) -> ConfigError {
    let place = |part: &str| part.as_ptr().addr() - text.as_ptr().addr();
    let below = |part, key: &String| match serde_json::from_str::<Vec<&RawValue>>(part) {
        Ok(rows) => rows.get(row(key)?).copied(),
        Err(_) => serde_json::from_str::<HashMap<String, &RawValue>>(part)
            .ok()?
            .remove(key),
    };
    let (mut part, mut at) = (text, text.len() - text.trim_start().len());
    for (step, key) in error.path().iter().enumerate() {
        let Some(next) = below(part, key) else { break };
        part = next.get();
        at = place(part);
        if error.is_of_key_at(step) {
            let before = text[..at].trim_end().trim_end_matches(':').trim_end();
            at = before.len().saturating_sub(Value::from(&**key).to_string().len());
        }
    }
    error.at(text, at)
}
