//! The book: `docs/` as pages for a browser.
//!
//! The guides are the book; nothing is written for it alone but its table of contents. The tests here hold it together: every
//! guide is in the contents, and every link leads somewhere.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::tools;

/// Makes the book, in the target folder.
pub(crate) fn make() -> ExitCode {
    match build(&tools::root(), &tools::target().join("book")) {
        Ok(page) => {
            println!("{page}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("xtask: the book was not made: {why}");
            ExitCode::FAILURE
        }
    }
}

fn build(root: &Path, into: &Path) -> Result<String, String> {
    let mut mdbook = Command::new(tools::mdbook()?);
    let status = mdbook.arg("build").arg(root.join("docs")).arg("--dest-dir").arg(into).status();
    match status {
        Ok(status) if status.success() => Ok(into.join("index.html").display().to_string()),
        Ok(status) => Err(format!("mdbook: {status}")),
        Err(error) => Err(format!("mdbook did not start: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Every page under `docs`, with its text.
    fn pages() -> Vec<(PathBuf, String)> {
        let docs = tools::root().join("docs");
        let mut pages = Vec::new();
        for folder in [docs.clone(), docs.join("adr")] {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "md") {
                    let text = fs::read_to_string(&path).unwrap();
                    pages.push((path, text));
                }
            }
        }
        pages
    }

    /// Where the links of a page lead, without code blocks.
    fn links(text: &str) -> Vec<String> {
        let mut links = Vec::new();
        let mut code = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                code = !code;
            }
            if code {
                continue;
            }
            for part in line.split("](").skip(1) {
                links.extend(part.split(')').next().map(str::to_owned));
            }
        }
        links
    }

    /// The anchor of a heading.
    fn anchor(heading: &str) -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    #[test]
    fn every_page_is_in_the_contents() {
        let docs = tools::root().join("docs");
        let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
        let listed: BTreeSet<PathBuf> = links(&contents).iter().map(|link| docs.join(link)).collect();
        let missing: Vec<PathBuf> = pages()
            .into_iter()
            .map(|(path, _)| path)
            .filter(|path| !path.ends_with("SUMMARY.md") && !listed.contains(path))
            .collect();
        assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
    }

    #[test]
    fn every_link_leads_somewhere() {
        let mut broken = Vec::new();
        let root = tools::root();
        let mut pages = pages();
        for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
            pages.push((root.join(name), fs::read_to_string(root.join(name)).unwrap()));
        }
        for (page, text) in &pages {
            for link in links(text).iter().filter(|link| !link.contains("://")) {
                let (file, heading) = link.split_once('#').unwrap_or((link, ""));
                let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
                let found = target.exists()
                    && (heading.is_empty()
                        || fs::read_to_string(&target)
                            .unwrap()
                            .lines()
                            .any(|line| line.starts_with('#') && anchor(line) == heading));
                if !found {
                    broken.push(format!("{}: {link}", page.display()));
                }
            }
        }
        assert!(broken.is_empty(), "{broken:#?}");
    }
}
