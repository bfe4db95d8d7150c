//! A local page on which the limits of a policy are sliders: each move replays the trace, and shows what the command line would.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the page |
//! | `/replay` | the tables and plots, as a part of it |
//! | `/table` | the table as text |
//!
//! Each takes the positions of sliders that were moved, as `?LEG=STEP&...`, by the positions of their legs. It is served on loopback alone.

use super::error::LabError;
use super::knob::{self, Knob, Number};
use super::page::{Page, ticks};
use super::replay::Bench;
use super::summary::{self, Tried};
use super::trace::Trace;
use maud::{DOCTYPE, PreEscaped, html};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tollgate::WorkerPool;
use tollgate_config::{LegKind, PolicySpec};

/// What is served: a policy, a trace, and the numbers that sliders turn.
struct Lab {
    name: String,
    spec: PolicySpec,
    trace: Trace,
    knobs: Vec<Knob>,
}

/// Serves the page until the process ends. Port 0 is a free one; the address is printed.
pub fn serve(port: u16, name: String, spec: PolicySpec, trace: Trace) -> Result<(), LabError> {
    let wrong = |error: &dyn std::fmt::Display| LabError::new(format!("port {port}: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| wrong(&error))?;
    let address = listener.local_addr().map_err(|error| wrong(&error))?;
    let knobs = knob::knobs(&spec, &trace);
    let lab = Arc::new(Lab {
        name,
        spec,
        trace,
        knobs,
    });
    // A policy that cannot be replayed is found before the first request.
    lab.replay(&[])?;
    // Browsers keep connections open on which they ask nothing.
    let pool = WorkerPool::builder().workers(8).max_queue(64).build();
    let pool = pool.map_err(|error| LabError::new(error.to_string()))?;
    println!("lab: http://{address}/");
    for stream in listener.incoming().flatten() {
        let lab = Arc::clone(&lab);
        // With a full queue the connection is dropped, and the browser tries again.
        drop(pool.try_submit(move || lab.answer(stream)));
    }
    Ok(())
}

impl Lab {
    /// The policy with sliders at these steps, and what comes of the trace.
    fn replay(&self, moved: &[(usize, usize)]) -> Result<(Page, Duration), LabError> {
        let mut spec = self.spec.clone();
        for knob in &self.knobs {
            let Some(&(_, step)) = moved.iter().find(|(leg, _)| *leg == knob.leg) else {
                continue;
            };
            let kind = knob.at(step.min(knob.most));
            spec.legs[knob.leg].kind = kind.ok_or_else(|| LabError::new(format!("`{}` cannot be that", knob.name)))?;
        }
        let start = Instant::now();
        let replay = Bench::new(&spec, &self.trace)?.run(&spec)?;
        let tried = [Tried {
            name: self.name.clone(),
            spec,
            replay,
        }];
        let tables = vec![summary::table(&tried, &self.trace)];
        Ok((summary::page(&tried, &self.trace, tables, Vec::new()), start.elapsed()))
    }

    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        // The whole head, at most 8 KB: closing with a part unread would reset the connection.
        let mut lines = BufReader::new((&stream).take(8 * 1024)).lines();
        let line = lines.next().transpose()?.unwrap_or_default();
        for line in lines {
            if line?.is_empty() {
                break;
            }
        }
        let target = line
            .strip_prefix("GET ")
            .and_then(|rest| rest.split(' ').next())
            .unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let moved: Vec<(usize, usize)> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .filter_map(|(leg, step)| Some((leg.parse().ok()?, step.parse().ok()?)))
            .collect();
        let answer = |render: &dyn Fn(&Page, Duration) -> String| match self.replay(&moved) {
            Ok((page, took)) => ("200 OK", render(&page, took)),
            Err(error) => ("400 Bad Request", error.to_string()),
        };
        let (status, body) = match path {
            "/" => answer(&|page, took| self.page(&moved, page, took)),
            "/replay" => answer(&part),
            "/table" => answer(&|page, _| page.tables[0].text()),
            _ => ("404 Not Found", "there is no such page\n".into()),
        };
        let is_page = status == "200 OK" && path != "/table";
        let kind = if is_page {
            "text/html; charset=utf-8"
        } else {
            "text/plain; charset=utf-8"
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}",
            body.len()
        );
        write!(
            &stream,
            "{head}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
        )
    }

    /// The page: a slider for each number, and what comes of them.
    fn page(&self, moved: &[(usize, usize)], page: &Page, took: Duration) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta http-equiv="Content-Security-Policy"
                        content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";
                    link rel="icon" href="data:,";
                    title { (page.title) }
                    style { (PreEscaped(include_str!("../../../../examples/report/page.css"))) (PreEscaped(include_str!("serve.css"))) }
                }
                body {
                    main {
                        h1 { (page.title) }
                        p.lead { (page.lead) " Move a limit: the trace is replayed. The address of the page keeps the numbers." }
                        form.sliders {
                            @for knob in &self.knobs {
                                @let given = moved.iter().find(|(leg, _)| *leg == knob.leg).map(|(_, step)| *step);
                                @let kind = given.and_then(|step| knob.at(step.min(knob.most)));
                                @let kind = kind.as_ref().unwrap_or(&self.spec.legs[knob.leg].kind);
                                label for=(format!("leg-{}", knob.leg)) { (knob.name) }
                                input type="range" id=(format!("leg-{}", knob.leg)) name=(knob.leg) min="0" max=(knob.most)
                                    value=(given.unwrap_or_else(|| step_of(kind))) data-moved=[given.map(|_| "yes")];
                                output for=(format!("leg-{}", knob.leg)) { (knob::written(kind).1) }
                            }
                        }
                        p.about { "Replays: " output id="replays" { "1" } }
                        div id="result" { (PreEscaped(part(page, took))) }
                    }
                    script { (PreEscaped(include_str!("serve.js"))) }
                }
            }
        };
        page.into_string()
    }
}

/// The step of a leg's number, or the next one.
fn step_of(kind: &LegKind) -> usize {
    match Number::of(kind) {
        Some(Number::Limit(limit)) => knob::step(limit),
        Some(Number::Quota(quota)) => knob::step(quota.count()),
        None => 0,
    }
}

/// What comes of the numbers, with those of the legs, and how long it took.
fn part(page: &Page, took: Duration) -> String {
    let took =
        html! { p.about { "Replayed in " output id="took" { (ticks::number(took.as_millis() as f64)) } " ms." } };
    took.into_string() + &page.body().into_string()
}
