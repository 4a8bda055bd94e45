package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// maxInput bounds a file, and standard input.
const maxInput = 16 << 20

// input is the resources of some files, and in which file each is.
type input struct {
	resources []*outriggerv1.Resource
	files     []string
}

// readInput reads files, the YAML and JSON files directly in directories, and standard input for "-".
func readInput(paths []string, stdin io.Reader) (*input, error) {
	in := &input{}
	var mistakes resource.Errors
	for _, path := range paths {
		files, err := expand(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			found, err := in.readFile(file, stdin)
			if err != nil {
				return nil, err
			}
			mistakes = append(mistakes, found...)
		}
	}
	if len(mistakes) > 0 {
		return nil, refused(append(mistakes, in.validate()...))
	}
	if len(in.resources) == 0 {
		return nil, fmt.Errorf("no resources in %s", strings.Join(paths, ", "))
	}
	return in, nil
}

// expand is the files that a path means.
func expand(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path)
	var files []string
	for _, e := range entries {
		extensions := []string{".yaml", ".yml", ".json"}
		if !e.IsDir() && slices.Contains(extensions, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, err
}

// readFile adds a file's resources.
func (in *input) readFile(file string, stdin io.Reader) (resource.Errors, error) {
	from, name := stdin, "stdin"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from, name = f, file
	}
	data, err := io.ReadAll(io.LimitReader(from, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > maxInput {
		return nil, fmt.Errorf("%s: more than %d bytes", name, maxInput)
	}
	found, mistakes := resource.Parse(name, data)
	for _, r := range found {
		in.resources = append(in.resources, r)
		in.files = append(in.files, name)
	}
	return mistakes, nil
}

// place is where a resource was read, as mistakes name it.
func (in *input) place(i int) string {
	return fmt.Sprintf("%s: %s/%s", in.files[i], in.resources[i].Kind, in.resources[i].Name)
}

var requestPath = regexp.MustCompile(`^resources\[(\d+)\]\.?`)

// located gives the server's violations, whose paths are of the request, the places where the resources were read.
func (in *input) located(found []*outriggerv1.FieldViolation) {
	for _, v := range found {
		m := requestPath.FindStringSubmatch(v.Path)
		if m == nil {
			continue
		}
		if i, err := strconv.Atoi(m[1]); err == nil && i < len(in.resources) {
			v.Path = in.place(i) + ": " + v.Path[len(m[0]):]
		}
	}
}

// validate checks what the server would, as if nothing else were stored.
func (in *input) validate() resource.Errors {
	var mistakes resource.Errors
	var objects []resource.Object
	fileOf := map[string]string{}
	for i, r := range in.resources {
		o, found := resource.Check(r)
		if o != nil {
			objects = append(objects, o)
			fileOf[resource.Ref(o)] = in.files[i]
		}
		mistakes = append(mistakes, found.Under(in.place(i))...)
	}
	for _, m := range resource.ValidateSet(objects) {
		ref, _, _ := strings.Cut(m.Path, ": ")
		m.Path = fileOf[ref] + ": " + m.Path
		mistakes = append(mistakes, m)
	}
	return mistakes
}

// refused is what was found wrong before the server was asked.
func refused(mistakes resource.Errors) error {
	var found []*outriggerv1.FieldViolation
	for _, m := range mistakes {
		found = append(found, &outriggerv1.FieldViolation{Path: m.Path, Message: m.Message})
	}
	return &exitError{exitRefused, &mistakesError{found}}
}

// parseKind finds a kind of resource, or one of more, by its name in any case or its plural.
func parseKind(s string, more ...string) (string, error) {
	kinds := append(resource.Kinds(), more...)
	for _, kind := range kinds {
		if strings.EqualFold(s, kind) || strings.EqualFold(s, plural(kind)) {
			return kind, nil
		}
	}
	return "", fmt.Errorf("%q is not a kind, expected one of %s", s, strings.Join(kinds, ", "))
}

func plural(kind string) string {
	if stem, ok := strings.CutSuffix(kind, "y"); ok && kind != resource.KindKey {
		return stem + "ies"
	}
	return kind + "s"
}

// parseLabels reads KEY=VALUE pairs.
func parseLabels(pairs []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not KEY=VALUE", pair)
		}
		if _, twice := labels[key]; twice {
			return nil, fmt.Errorf("label %q is given twice", key)
		}
		labels[key] = value
	}
	return labels, nil
}
