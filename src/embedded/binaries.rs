//! PostgreSQL's programs on this machine: found, told apart by major, and how to get them when they are missing.

use super::EmbeddedError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Oldest major that works, and the one that the remedy installs where the distribution's own is older.
const MAJOR_MIN: u32 = 15;
const MAJOR_TESTED: u32 = 16;

/// A directory with `postgres` and `initdb` of one major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    pub dir: PathBuf,
    pub major: u32,
}

impl Binaries {
    /// Whether this build compresses WAL with lz4, which costs a tenth of pglz.
    pub fn has_lz4(&self) -> bool {
        let said = Command::new(self.dir.join("pg_config")).arg("--configure").output();
        said.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("--with-lz4"))
    }
}

/// The binaries to use: those of `wanted`, the major an existing data directory was made by, else the newest.
///
/// Looks where `pg_config --bindir` says, in /usr/lib/postgresql/*/bin and along PATH.
pub fn find(wanted: Option<u32>) -> Result<Binaries, EmbeddedError> {
    let mut found = BTreeMap::new();
    for dir in candidates() {
        if let Some(major) = major_of(&dir) {
            found.entry(major).or_insert(dir);
        }
    }
    choose(&found, wanted).map_err(EmbeddedError)
}

fn choose(found: &BTreeMap<u32, PathBuf>, wanted: Option<u32>) -> Result<Binaries, String> {
    let newest = found.last_key_value();
    let chosen = match wanted {
        Some(major) => found.get_key_value(&major).filter(|_| MAJOR_MIN <= major),
        None => newest.filter(|(major, _)| MAJOR_MIN <= **major),
    };
    match (chosen, wanted, newest) {
        (Some((major, dir)), ..) => Ok(Binaries { dir: dir.clone(), major: *major }),
        (None, Some(major), _) if major < MAJOR_MIN => Err(format!(
            "the data directory was made by PostgreSQL {major}, which is too old; dump it with that version and \
            restore it into a new one"
        )),
        (None, Some(major), _) => Err(format!(
            "the data directory was made by PostgreSQL {major}, whose programs are not here; install them: {}",
            remedy(Some(major))
        )),
        (None, None, Some((major, dir))) => Err(format!(
            "PostgreSQL {major} in {} is too old, {MAJOR_MIN} or newer is needed; install it: {} \
            (or set DATABASE_URL to a server)",
            dir.display(),
            remedy(None)
        )),
        (None, None, None) => Err(format!(
            "no PostgreSQL on this machine; install it: {} (or set DATABASE_URL to a server)",
            remedy(None)
        )),
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Ok(out) = Command::new("pg_config").arg("--bindir").output() {
        dirs.push(PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()));
    }
    if let Ok(majors) = std::fs::read_dir("/usr/lib/postgresql") {
        dirs.extend(majors.flatten().map(|major| major.path().join("bin")));
    }
    if let Some(path) = std::env::var_os("PATH") {
        dirs.extend(std::env::split_paths(&path));
    }
    dirs.retain(|dir| dir.is_absolute() && dir.join("postgres").is_file() && dir.join("initdb").is_file());
    dirs
}

fn major_of(dir: &Path) -> Option<u32> {
    let out = Command::new(dir.join("postgres")).arg("--version").output().ok()?;
    parse_major(&String::from_utf8_lossy(&out.stdout))
}

/// `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)` is 15; so is `15beta2`.
fn parse_major(version: &str) -> Option<u32> {
    let number = version.split("(PostgreSQL) ").nth(1)?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

/// The command that installs the programs here.
fn remedy(major: Option<u32>) -> String {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    remedy_on(&release, major)
}

fn remedy_on(release: &str, major: Option<u32>) -> String {
    let field = |name: &str| {
        let line = release.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or("").trim_matches('"').to_owned()
    };
    let (id, like, version) = (field("ID"), field("ID_LIKE"), field("VERSION_ID"));
    let is = |family: &str| id == family || like.split(' ').any(|l| l == family);
    // What the distribution itself brings.
    let own = match (id.as_str(), version.as_str()) {
        ("debian", "12") => Some(15),
        ("debian", "13") => Some(17),
        ("ubuntu", "24.04") => Some(16),
        ("ubuntu", "25.04" | "25.10") => Some(17),
        ("ubuntu", "26.04") => Some(18),
        _ => None,
    };
    if is("debian") || is("ubuntu") {
        return match (own, major) {
            (Some(own), None) => format!("apt-get install -y postgresql-{own}"),
            (Some(own), Some(major)) if own == major => format!("apt-get install -y postgresql-{own}"),
            _ => format!(
                "apt-get install -y postgresql-common && /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y \
                && apt-get install -y postgresql-{}",
                major.unwrap_or(MAJOR_TESTED)
            ),
        };
    }
    let major = major.unwrap_or(MAJOR_TESTED);
    if is("alpine") {
        format!("apk add postgresql{major}")
    } else if is("fedora") || is("rhel") {
        "dnf install -y postgresql-server".into()
    } else if is("arch") {
        "pacman -S postgresql".into()
    } else {
        format!("your system's package of the PostgreSQL {major} server, with initdb and postgres on PATH")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(majors: &[u32]) -> BTreeMap<u32, PathBuf> {
        majors.iter().map(|m| (*m, PathBuf::from(format!("/pg/{m}")))).collect()
    }

    #[test]
    fn the_newest_is_taken_unless_the_data_directory_keeps_its_major() {
        assert_eq!(choose(&found(&[14, 15, 17]), None).unwrap().major, 17);
        assert_eq!(choose(&found(&[14, 15, 17]), Some(15)).unwrap().major, 15);
        for (majors, wanted, says) in [
            (&[][..], None, "no PostgreSQL"),
            (&[13, 14][..], None, "PostgreSQL 14 in /pg/14 is too old"),
            (&[17][..], Some(16), "made by PostgreSQL 16, whose programs are not here"),
            (&[14][..], Some(14), "too old"),
        ] {
            let said = choose(&found(majors), wanted).unwrap_err();
            assert!(said.contains(says), "{said}");
            assert!(!said.contains('\n'));
        }
    }

    #[test]
    fn versions_are_read_whatever_follows_the_major() {
        for (text, major) in [
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 16\n", Some(16)),
            ("something else", None),
        ] {
            assert_eq!(parse_major(text), major, "{text}");
        }
    }

    #[test]
    fn the_remedy_is_a_command_of_this_distribution() {
        let debian = "ID=debian\nVERSION_ID=\"12\"\n";
        assert_eq!(remedy_on(debian, None), "apt-get install -y postgresql-15");
        assert!(remedy_on(debian, Some(17)).ends_with("apt-get install -y postgresql-17"));
        let jammy = "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"22.04\"\n";
        assert!(remedy_on(jammy, None).contains("apt.postgresql.org.sh"));
        assert_eq!(remedy_on("ID=alpine\n", None), "apk add postgresql16");
    }
}
