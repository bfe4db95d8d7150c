//! A report as one HTML page that needs nothing else: no network, no other file. Tables, and plots as inline SVG, for light
//! and dark.
//!
//! The examples share it by `#[path]`. They pass text and numbers; everything is escaped here.

pub mod plot;
pub mod series;
pub mod ticks;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plot::Plot;

/// One page.
pub struct Page {
    pub title: String,
    /// The run, in a sentence or two.
    pub lead: String,
    pub tables: Vec<Table>,
    pub groups: Vec<Group>,
    /// Tables that are looked up, below the plots.
    pub below: Vec<Table>,
    /// Notes on the numbers for the reader.
    pub notes: Vec<String>,
}

/// A table: the first column names the row.
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Plots of the same thing, which share one scale and stand side by side where there is room.
pub struct Group {
    pub title: String,
    /// The content of the plot, and its units.
    pub about: String,
    pub plots: Vec<Plot>,
}

impl Page {
    /// The page as text.
    pub fn render(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    // Nothing is fetched, whatever a page says; browsers ask for an icon unless there is one.
                    meta http-equiv="Content-Security-Policy"
                        content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
                    link rel="icon" href="data:,";
                    title { (self.title) }
                    style { (PreEscaped(include_str!("page.css"))) }
                }
                body {
                    main {
                        h1 { (self.title) }
                        p.lead { (self.lead) }
                        (self.body())
                    }
                    script { (PreEscaped(include_str!("page.js"))) }
                }
            }
        };
        page.into_string()
    }

    /// All that stands below the lead.
    pub fn body(&self) -> Markup {
        html! {
            @for table in &self.tables { (table.render()) }
            @for group in &self.groups { (group.render()) }
            @for table in &self.below { (table.render()) }
            @if !self.notes.is_empty() {
                h2 { "Notes" }
                ul.notes { @for note in &self.notes { li { (note) } } }
            }
        }
    }
}

impl Table {
    fn render(&self) -> Markup {
        html! {
            section {
                h2 { (self.title) }
                div.wide {
                    table {
                        thead { tr { @for cell in &self.head { th scope="col" { (cell) } } } }
                        tbody {
                            @for row in &self.rows {
                                tr {
                                    @for (column, cell) in row.iter().enumerate() {
                                        @if column == 0 { th scope="row" { (indented(cell)) } } @else { td { (cell) } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Spaces in front stay: they say that a row is part of the one above.
fn indented(cell: &str) -> Markup {
    let text = cell.trim_start();
    html! { @if text.len() < cell.len() { span.part { (text) } } @else { (text) } }
}

impl Group {
    fn render(&self) -> Markup {
        let top = self.plots.iter().map(Plot::top).fold(0.0, f64::max);
        html! {
            section id=(self.title.to_lowercase().replace([' ', ','], "-")) {
                h2 { (self.title) }
                p.about { (self.about) }
                div.plots { @for plot in &self.plots { (plot.render(&self.title, top)) } }
            }
        }
    }
}

impl Table {
    /// The table as text: the first column to the left, the others to the right.
    pub fn text(&self) -> String {
        let columns = self.head.len();
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| {
            let cells = all().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in all() {
            for (column, cell) in row.iter().enumerate() {
                let room = widths[column];
                if column == 0 {
                    text += &format!("{cell:<room$}");
                } else {
                    text += &format!("  {cell:>room$}");
                }
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }
}
