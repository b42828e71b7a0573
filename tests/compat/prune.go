package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// copyTests copies the test files of the package in folder from to folder to, without the tests named in skips and
// without what only those need: they may use what the package under test has and its stand-in does not.
func copyTests(from, to string, skips []skip) error {
	p, err := parseTests(filepath.Join(from, "*_test.go"))
	if err != nil {
		return err
	}
	for _, name := range p.tests {
		if !slices.ContainsFunc(skips, func(k skip) bool { return k.test == name }) {
			p.use(name)
		}
	}
	for _, f := range p.files {
		if text := p.prune(f); text != nil {
			if err := os.WriteFile(filepath.Join(to, filepath.Base(f.path)), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// testNames returns the names of all tests in files.
func testNames(pattern string) ([]string, error) {
	p, err := parseTests(pattern)
	if err != nil {
		return nil, err
	}
	return p.tests, nil
}

func parseTests(pattern string) (*pruner, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	p := &pruner{fset: token.NewFileSet(), named: make(map[string][]ast.Decl), used: make(map[ast.Decl]bool)}
	for _, path := range paths {
		if err := p.parse(path); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// pruner takes top-level declarations out of the files of one package.
type pruner struct {
	fset  *token.FileSet
	files []testFile
	// named are the declarations of a name: several with the methods of a type.
	named map[string][]ast.Decl
	tests []string
	used  map[ast.Decl]bool
}

type testFile struct {
	path   string
	text   []byte
	syntax *ast.File
}

func (p *pruner) parse(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	syntax, err := parser.ParseFile(p.fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p.files = append(p.files, testFile{path, text, syntax})
	for _, d := range syntax.Decls {
		for _, name := range declared(d) {
			p.named[name] = append(p.named[name], d)
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(name, "Test") && name != "TestMain" {
				p.tests = append(p.tests, name)
			}
		}
	}
	return nil
}

// declared returns the names that make a declaration needed when they are used. A method is needed when its type is.
func declared(d ast.Decl) []string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			return []string{receiver(d.Recv.List[0].Type)}
		}
		return []string{d.Name.Name}
	case *ast.GenDecl:
		var names []string
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
		return names
	}
	return nil
}

func receiver(t ast.Expr) string {
	for {
		switch e := t.(type) {
		case *ast.StarExpr:
			t = e.X
		case *ast.IndexExpr:
			t = e.X
		case *ast.IndexListExpr:
			t = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// use marks what is declared under a name, and all that it uses. A local variable of the same name keeps a declaration
// too.
func (p *pruner) use(name string) {
	for _, d := range p.named[name] {
		if p.used[d] {
			continue
		}
		p.used[d] = true
		ast.Inspect(d, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				p.use(id.Name)
			}
			return true
		})
	}
}

// prune returns the text of a file without what is not used, or nil if nothing is.
func (p *pruner) prune(f testFile) []byte {
	packages := make(map[string]bool) // that what is kept may refer to
	kept := false
	var cuts []ast.Node
	for _, d := range f.syntax.Decls {
		switch {
		case p.used[d]:
			kept = true
			ast.Inspect(d, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if id, ok := s.X.(*ast.Ident); ok {
						packages[id.Name] = true
					}
				}
				return true
			})
		case !isImport(d):
			cuts = append(cuts, d)
			if doc := docOf(d); doc != nil {
				cuts = append(cuts, doc)
			}
		}
	}
	if !kept {
		return nil
	}
	for _, s := range f.syntax.Imports {
		if name := importName(s); name != "_" && name != "." && !packages[name] {
			cuts = append(cuts, s)
		}
	}
	return p.cut(f.text, cuts)
}

func isImport(d ast.Decl) bool {
	g, ok := d.(*ast.GenDecl)
	return ok && g.Tok == token.IMPORT
}

func docOf(d ast.Decl) *ast.CommentGroup {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Doc
	case *ast.GenDecl:
		return d.Doc
	}
	return nil
}

// importName is the name by which a file knows a package, if that is called as its path says.
func importName(s *ast.ImportSpec) string {
	if s.Name != nil {
		return s.Name.Name
	}
	p := strings.Trim(s.Path.Value, `"`)
	name := path.Base(p)
	if rest, ok := strings.CutPrefix(name, "v"); ok && strings.Trim(rest, "0123456789") == "" {
		name = path.Base(path.Dir(p))
	}
	return name
}

// cut removes nodes from a text. They do not overlap.
func (p *pruner) cut(text []byte, nodes []ast.Node) []byte {
	slices.SortFunc(nodes, func(a, b ast.Node) int { return int(a.Pos() - b.Pos()) })
	var out []byte
	at := 0
	for _, n := range nodes {
		from, to := p.fset.Position(n.Pos()).Offset, p.fset.Position(n.End()).Offset
		out = append(out, text[at:from]...)
		at = to
	}
	return append(out, text[at:]...)
}
