//! What traffic a policy is tried on: a bundled trace, or a CSV file of the user's own, plain or gzipped.

use super::azure;
use super::error::LabError;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The bundled traces: name, file, and what it is.
pub const BUNDLED: [(&str, &str, &str); 3] = [
    (
        "azure-code",
        "azure_llm_2023_code.csv.gz",
        "an hour of LLM requests for code (Azure, 2023)",
    ),
    (
        "azure-conv",
        "azure_llm_2023_conv.csv.gz",
        "the same hour of LLM conversations (Azure, 2023)",
    ),
    (
        "nasa",
        "nasa_19950801_replay.csv.gz",
        "a day of a public web server (NASA, 1995)",
    ),
];

/// One request, in nanoseconds since the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub at: u64,
    /// How long it works once it is admitted.
    pub hold: u64,
    /// False when it was refused as it was recorded, so that the length of its work is not known.
    pub known: bool,
    pub failed: bool,
    pub calls: u64,
    /// For each cost of the trace, what is charged on admission and what it comes to in the end.
    pub units: Vec<[u64; 2]>,
}

/// Traffic.
#[derive(Clone, Debug)]
pub struct Trace {
    pub name: String,
    /// The names of what requests cost.
    pub costs: Vec<String>,
    pub requests: Vec<Request>,
}

impl Trace {
    /// The bundled trace of this name, or else the file, of which these costs are wanted.
    pub fn read(which: &str, wanted: &[String], hold: Duration) -> Result<Self, LabError> {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data");
        match BUNDLED.iter().find(|bundled| bundled.0 == which) {
            Some((name, file, _)) if *name == "nasa" => nasa(name, &data.join(file)),
            Some((name, file, _)) => llm(name, &data.join(file)),
            None => own(Path::new(which), wanted, hold),
        }
    }
}

/// An LLM trace: tokens are charged by an estimate, and the work takes as long as its tokens.
fn llm(name: &str, path: &Path) -> Result<Trace, LabError> {
    let trace = azure::read(path).map_err(|error| LabError::new(error.to_string()))?;
    let start = trace.first().map_or(0, |first| first.at);
    let request = |request: &azure::Request| {
        let (context, generated) = (request.context, request.generated);
        Request {
            at: request.at - start,
            hold: 150_000_000 + 50_000 * context + 30_000_000 * generated,
            known: true,
            failed: false,
            calls: 1,
            units: vec![[context + 64, context + generated]],
        }
    };
    Ok(Trace {
        name: name.into(),
        costs: vec!["tokens".into()],
        requests: trace.iter().map(request).collect(),
    })
}

/// A web server's log, to the second: work takes 50 ms and the time for its bytes over a line of 56 kB/s.
fn nasa(name: &str, path: &Path) -> Result<Trace, LabError> {
    let mut table = Table::open(path)?;
    let [at, status, bytes] = [table.column("t_s")?, table.column("status")?, table.column("bytes")?];
    let mut requests = Vec::new();
    while let Some(row) = table.next()? {
        let size = row.whole(bytes)?;
        requests.push(Request {
            at: row.whole(at)? * 1_000_000_000,
            hold: 50_000_000 + size * 1_000_000_000 / 56_000,
            known: true,
            failed: row.whole(status)? >= 500,
            calls: 1,
            units: vec![[size; 2]],
        });
    }
    Ok(Trace {
        name: name.into(),
        costs: vec!["bytes".into()],
        requests,
    })
}

/// A file of the user's own. The header names its columns, in any order: `at`, and perhaps `hold`, `failed`, costs, and
/// `COST.used`. An admission log has `waited` besides, and stands in the order in which requests ended.
fn own(path: &Path, wanted: &[String], hold: Duration) -> Result<Trace, LabError> {
    let mut table = Table::open(path)?;
    let at = table.column("at")?;
    let [held, failed] = ["hold", "failed"].map(|name| table.find(name));
    let is_log = table.find("waited").is_some();
    // In a trace they may be costs.
    let [calls, weight] = ["calls", "weight"].map(|name| table.find(name).filter(|_| is_log));
    let cost = |name: &String| {
        Ok(Cost {
            charged: table.column(name)?,
            used: table.find(&format!("{name}.used")),
        })
    };
    let costs = wanted.iter().map(cost).collect::<Result<Vec<_>, LabError>>()?;
    let mut requests: Vec<(Request, u64)> = Vec::new();
    while let Some(row) = table.next()? {
        // Only a log knows requests that did no work.
        let filled = |column: Option<usize>| column.filter(|&column| !is_log || !row.record[column].is_empty());
        let request = Request {
            at: row.seconds(at)?,
            hold: match filled(held) {
                Some(held) => row.seconds(held)?,
                None => u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX),
            },
            known: held.is_none() || filled(held).is_some(),
            failed: failed.map_or(Ok(false), |failed| row.yes(failed))?,
            calls: calls.map_or(Ok(1), |calls| row.whole(calls))?,
            units: costs
                .iter()
                .map(|cost| {
                    let charged = row.whole(cost.charged)?;
                    Ok([charged, filled(cost.used).map_or(Ok(charged), |used| row.whole(used))?])
                })
                .collect::<Result<_, LabError>>()?,
        };
        if !is_log && requests.last().is_some_and(|(last, _)| last.at > request.at) {
            return Err(row.wrong(at, "is earlier than the line before"));
        }
        let weight = weight.map_or(Ok(1), |weight| row.whole(weight))?;
        requests.push((request, weight));
    }
    requests.sort_by_key(|(request, _)| request.at);
    let mut requests = spread(requests);
    let start = requests.first().map(|first| first.at);
    let start = start.ok_or_else(|| LabError::new(format!("{}: it holds no requests", path.display())))?;
    requests.iter_mut().for_each(|request| request.at -= start);
    guess(&mut requests);
    Ok(Trace {
        name: path.display().to_string(),
        costs: wanted.to_vec(),
        requests,
    })
}

/// Each request as often as it stands for others, evenly until the next.
fn spread(requests: Vec<(Request, u64)>) -> Vec<Request> {
    let next: Vec<u64> = requests.iter().skip(1).map(|(next, _)| next.at).collect();
    let mut gap = 0;
    let all = requests.into_iter().enumerate().flat_map(|(index, (request, weight))| {
        // The last has the gap before it.
        gap = next.get(index).map_or(gap, |next| next - request.at);
        let gap = gap;
        (0..weight).map(move |turn| Request {
            at: request.at + (u128::from(gap) * u128::from(turn) / u128::from(weight)) as u64,
            ..request.clone()
        })
    });
    all.collect()
}

/// Gives each request whose work is not known the median of the others.
fn guess(requests: &mut [Request]) {
    let mut known: Vec<u64> = requests.iter().filter(|one| one.known).map(|one| one.hold).collect();
    known.sort_unstable();
    if let Some(&median) = known.get(known.len() / 2) {
        let unknown = requests.iter_mut().filter(|one| !one.known);
        unknown.for_each(|one| one.hold = median);
    }
}

/// The columns of a cost.
struct Cost {
    charged: usize,
    used: Option<usize>,
}

/// A CSV file, line by line.
struct Table {
    path: PathBuf,
    header: csv::StringRecord,
    reader: csv::Reader<Box<dyn Read>>,
}

/// One line.
struct Row<'a> {
    path: &'a Path,
    line: u64,
    header: &'a csv::StringRecord,
    record: csv::StringRecord,
}

fn line_of(error: &csv::Error) -> u64 {
    error.position().map_or(1, csv::Position::line)
}

impl Table {
    fn open(path: &Path) -> Result<Self, LabError> {
        let file = File::open(path).map_err(|error| LabError::new(format!("{}: {error}", path.display())))?;
        let gzipped = path.extension().is_some_and(|extension| extension == "gz");
        let file: Box<dyn Read> = if gzipped {
            Box::new(flate2::read::GzDecoder::new(file))
        } else {
            Box::new(file)
        };
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(file);
        let header = reader.headers();
        let header = header
            .map_err(|error| LabError::at(path, line_of(&error), error.to_string()))?
            .clone();
        Ok(Self {
            path: path.into(),
            header,
            reader,
        })
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|title| title == name)
    }

    fn column(&self, name: &str) -> Result<usize, LabError> {
        let missing = || {
            let there: Vec<_> = self.header.iter().collect();
            let what = format!("the column `{name}` is missing; there are: {}", there.join(", "));
            LabError::at(&self.path, 1, what)
        };
        self.find(name).ok_or_else(missing)
    }

    fn next(&mut self) -> Result<Option<Row<'_>>, LabError> {
        let mut record = csv::StringRecord::new();
        let read = self.reader.read_record(&mut record);
        let more = read.map_err(|error| LabError::at(&self.path, line_of(&error), error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        Ok(more.then_some(Row {
            path: &self.path,
            line,
            header: &self.header,
            record,
        }))
    }
}

impl Row<'_> {
    fn wrong(&self, column: usize, what: &str) -> LabError {
        let (name, text) = (&self.header[column], &self.record[column]);
        LabError::at(self.path, self.line, format!("column `{name}`: `{text}` {what}"))
    }

    fn whole(&self, column: usize) -> Result<u64, LabError> {
        let number = self.record[column].parse::<u32>().map(u64::from);
        number.map_err(|_| self.wrong(column, "is no whole number up to 4294967295"))
    }

    /// Seconds with a fraction, as nanoseconds; what is finer is cut off.
    fn seconds(&self, column: usize) -> Result<u64, LabError> {
        let nanos = nanos(&self.record[column]);
        nanos.ok_or_else(|| self.wrong(column, "is no number of seconds from 0 to 10000000000"))
    }

    fn yes(&self, column: usize) -> Result<bool, LabError> {
        match &self.record[column] {
            "0" | "false" | "no" | "" => Ok(false),
            "1" | "true" | "yes" => Ok(true),
            _ => Err(self.wrong(column, "is neither yes nor no")),
        }
    }
}

/// `12.5` as nanoseconds, exactly.
fn nanos(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = format!("{:0<9}", &fraction[..fraction.len().min(9)]);
    let whole = whole.parse::<u64>().ok().filter(|&whole| whole <= 10_000_000_000)?;
    Some(whole * 1_000_000_000 + fraction.parse::<u64>().ok()?)
}
