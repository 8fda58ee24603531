package idemd_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// imports says which packages of this module each package may import, beside
// the standard library, and which outside modules. A package that is missing
// here, and an import that is, are errors: the structure is decided, not grown.
var imports = map[string]struct{ own, outside []string }{
	"event":           {},
	"dedup":           {own: []string{"event"}},
	"dedup/boltstore": {own: []string{"event", "dedup"}, outside: []string{"go.etcd.io/bbolt", "golang.org/x/sys", "github.com/FastFilter/xorfilter"}},
	"dedup/ledger":    {own: []string{"event", "dedup"}},
	"dedup/storetest": {own: []string{"event", "dedup"}, outside: []string{"pgregory.net/rapid", "github.com/google/go-cmp"}},
	"queue":           {own: []string{"event"}, outside: []string{"github.com/nats-io", "github.com/minio/highwayhash", "golang.org/x/sys"}},
	"receiver":        {own: []string{"event"}},
	"consumer":        {own: []string{"event", "dedup", "queue"}},
	"janitor":         {},
	"admin":           {own: []string{"event", "dedup", "queue", "janitor"}},
	"app": {
		own:     []string{"", "event", "dedup", "dedup/boltstore", "dedup/ledger", "queue", "receiver", "consumer", "janitor", "admin"},
		outside: []string{"github.com/pelletier/go-toml/v2", "golang.org/x/sys"},
	},
	"cmd/idemd": {own: []string{"", "app", "admin", "janitor"}, outside: []string{"github.com/spf13/cobra"}},
	"":          {},
}

type listed struct {
	ImportPath string
	Doc        string
	Imports    []string
	Standard   bool
	DepOnly    bool
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	var all []listed
	for {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestStructure_PackagesImportWhatTheyMay(t *testing.T) {
	for _, p := range packages(t) {
		name := ownName(p.ImportPath)
		rule, ok := imports[name]
		if !ok {
			t.Errorf("package %q has no rule: decide what it may import, and say so here and in ARCHITECTURE.md", name)
			continue
		}
		if p.Doc == "" {
			t.Errorf("package %q has no package comment", name)
		}
		for _, imp := range p.Imports {
			switch {
			case imp == "idemd" || strings.HasPrefix(imp, "idemd/"):
				if !slices.Contains(rule.own, ownName(imp)) {
					t.Errorf("package %q must not import %q", name, imp)
				}
			case !strings.Contains(strings.SplitN(imp, "/", 2)[0], "."): // standard library
			case !slices.ContainsFunc(rule.outside, func(m string) bool { return imp == m || strings.HasPrefix(imp, m+"/") }):
				t.Errorf("package %q must not import %q", name, imp)
			}
		}
	}
}

func ownName(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, "idemd"), "/") }

// The bounds that keep a file readable in one go.
const (
	maxFileLines     = 400
	maxTestFileLines = 600
	maxFuncLines     = 60
)

func TestStructure_FilesAndFunctionsStaySmall(t *testing.T) {
	eachGoFile(t, func(path string, src []byte) {
		lines, bound := strings.Count(string(src), "\n"), maxFileLines
		test := strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "dedup/storetest/")
		if test {
			bound = maxTestFileLines
		}
		if lines > bound {
			t.Errorf("%s has %d lines, over %d", path, lines, bound)
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxFuncLines && !test {
				t.Errorf("%s: %s has %d lines, over %d", path, fn.Name.Name, n, maxFuncLines)
			}
			if fn.Name.Name == "init" && fn.Recv == nil {
				t.Errorf("%s: func init", path)
			}
		}
	})
}

func TestStructure_NoUnfinishedOrSleepingCode(t *testing.T) {
	// Written so that this file does not match itself.
	everywhere := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b|\bt\.Sk` + `ip|testing\.Sh` + `ort`)
	production := regexp.MustCompile(`\bpanic\(|context\.TO` + `DO|log\.Fatal|os\.Exit`)
	allowed := map[string]bool{
		"receiver: panic(http.ErrAbortHandler)": true, // net/http's way to close a connection without an answer
	}
	eachGoFile(t, func(path string, src []byte) {
		// A bubble's sleep takes no time; packages have helpers that make one.
		bubble := strings.Contains(string(src), `"testing/synctest"`) || strings.Contains(string(src), "ubble(t, ")
		sleeps := strings.Contains(string(src), "time.Sl"+"eep") && !bubble
		if sleeps && !strings.HasPrefix(path, "dedup/storetest/") {
			t.Errorf("%s sleeps: wait on a channel, or inside a synctest bubble", path)
		}
		for n, line := range strings.Split(string(src), "\n") {
			if everywhere.MatchString(line) {
				t.Errorf("%s:%d: %s", path, n+1, strings.TrimSpace(line))
			}
			code, _, _ := strings.Cut(line, "//")
			entry := filepath.ToSlash(filepath.Dir(path)) + ": " + strings.TrimSpace(code)
			if !strings.HasSuffix(path, "_test.go") && path != "cmd/idemd/main.go" && production.MatchString(code) && !allowed[entry] {
				t.Errorf("%s:%d: %s", path, n+1, strings.TrimSpace(line))
			}
		}
	})
}

func eachGoFile(t *testing.T, fn func(path string, src []byte)) {
	t.Helper()
	walk(t, ".go", fn)
}

func walk(t *testing.T, ext string, fn func(path string, src []byte)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata" || d.Name() == "idemd-data"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ext:
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(path), src)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A path in a document, in backticks: with a slash or an ending that files have.
var docPath = regexp.MustCompile("`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*/?(?:\\.go|\\.md|\\.toml|\\.service)?)`")

func TestDocs_NamedPathsExist(t *testing.T) {
	roots := []string{"app/", "admin/", "cmd/", "consumer/", "dedup/", "event/", "queue/", "receiver/", "packaging/", ".ci/", "docs/"}
	walk(t, ".md", func(path string, src []byte) {
		for _, m := range docPath.FindAllStringSubmatch(string(src), -1) {
			name := m[1]
			file := strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".md") || name == "config.example.toml"
			inside := slices.ContainsFunc(roots, func(r string) bool { return strings.HasPrefix(name+"/", r) })
			if !file && !inside {
				continue
			}
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s names `%s`, which does not exist", path, name)
			}
		}
	})
}
