package providers

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/inboxd/inboxd/inbox"
)

//go:embed sheets/*.yaml
var sheets embed.FS

// Catalog is a set of sheets.
type Catalog struct{ sheets map[string]*sheet }

// sheet is one provider.
type sheet struct {
	name     string
	about    string
	fallback string // the variant of a source that names none; "" if a source has to name one
	settings []string
	variants map[string]spec
}

// openToAll are keys that any source may set, since only its owner can know them.
var openToAll = []string{"biz_key", "ordering_key"}

// Embedded returns the sheets that inboxd comes with.
func Embedded() (*Catalog, error) { return load(sheets, "sheets") }

// load reads every sheet of a directory, and reports the mistakes of all.
func load(fsys fs.FS, dir string) (*Catalog, error) {
	files, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("list sheets: %w", err)
	}
	c := &Catalog{sheets: map[string]*sheet{}}
	var errs []error
	for _, file := range files {
		text, err := fs.ReadFile(fsys, path.Join(dir, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("read sheet: %w", err)
		}
		s, err := parseSheet(file.Name(), text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.sheets[s.name] = s
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// parseSheet reads one sheet.
func parseSheet(file string, text []byte) (*sheet, error) {
	root, err := parseYAML(file, text)
	if err != nil {
		return nil, err
	}
	s := &sheet{variants: map[string]spec{}}
	common := spec{answer: Answer{Status: 200}, sample: sampleSpec{contentType: "application/json"}}
	var variants node
	r := &reader{}
	members := common.members(r)
	members["name"] = r.text(&s.name)
	members["about"] = r.text(&s.about)
	members["default"] = r.text(&s.fallback)
	members["settings"] = r.texts(&s.settings)
	members["variants"] = func(n node) { variants = n }
	r.object(root, members)
	if s.name+".yaml" != file {
		r.fail(root, "name must be that of the file")
	}
	if s.about == "" {
		r.fail(root, "about is missing: say what an operator has to do")
	}

	if variants.kind == "" {
		s.variants[""] = common
	} else if r.is(variants, kindObject) {
		for _, f := range variants.fields {
			variant := common
			r.object(f.value, variant.members(r))
			s.variants[f.name] = variant
		}
		if len(s.variants) == 1 && s.fallback == "" {
			s.fallback = variants.fields[0].name
		}
	}
	if _, ok := s.variants[s.fallback]; !ok && s.fallback != "" {
		r.fail(root, "default names no variant")
	}
	for name, variant := range s.variants {
		// "none" has to be asked for by name: no other name may verify nothing.
		if variant.signature.scheme == "none" && s.name != "none" {
			r.fail(root, "variant %q: only the sheet named none verifies nothing", name)
		}
	}
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return s, nil
}

// Names returns the providers' names, sorted.
func (c *Catalog) Names() []string { return slices.Sorted(maps.Keys(c.sheets)) }

// Configure compiles the source's variant of its provider's sheet. The error holds every mistake of the
// source and says what to do about it; it never holds a secret.
func (c *Catalog) Configure(src *inbox.Source) (*Verifier, error) {
	configured, r, err := c.configured(src)
	if err != nil {
		return nil, err
	}
	configured.check(r)
	v := configured.compile(r, src.Secrets)
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return v, nil
}

// SignatureHeader returns the name of the header in which the source's requests prove themselves, "" if that is
// elsewhere or nowhere. It needs no secret, so it knows deleted sources too.
func (c *Catalog) SignatureHeader(src *inbox.Source) string {
	configured, _, err := c.configured(src)
	if err != nil || configured.signature.in == nil || configured.signature.in.kind != inHeader {
		return ""
	}
	return configured.signature.in.name
}

// configured lays the source's settings over its variant of the sheet. The reader has the mistakes in them.
func (c *Catalog) configured(src *inbox.Source) (spec, *reader, error) {
	s, ok := c.sheets[src.Provider]
	if !ok {
		return spec{}, nil, fmt.Errorf("provider: %q is unknown; known are %s", src.Provider, strings.Join(c.Names(), ", "))
	}
	name := src.Variant
	if name == "" {
		name = s.fallback
	}
	configured, ok := s.variants[name]
	if !ok {
		return spec{}, nil, fmt.Errorf("variant: %q is not one of %s: %s", src.Variant, s.name, strings.Join(slices.Sorted(maps.Keys(s.variants)), ", "))
	}

	r := &reader{open: slices.Concat(s.settings, openToAll)}
	settings, err := parseJSON(src.Settings)
	if err != nil {
		return spec{}, nil, err
	}
	r.object(settings, configured.members(r))
	return configured, r, nil
}
